"""Callers who come once in an interval: one call each, as by an exact rule, and nothing to tell afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_ratelimiter.engine import Charge, EngineUnavailable, Verdict
from django_ratelimiter.engine.local.first_calls import TIDY_SECONDS
from django_ratelimiter.engine.templates import CallTemplate, ChargeTemplate, FilledCharges

from .world import INTERVAL, Clock, Counted, Process, admitted, charge, counts, held


class Interrupted(Counted):
    """An engine during whose next call something else happens, before or after it has decided."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def check(self, charges: list[Charge], **options: Any) -> list[Verdict]:
        before, self.before = self.before, None
        after, self.after = self.after, None
        if before:
            before()
        verdicts = super().check(charges, **options)
        if after:
            after()
        return verdicts


@pytest.fixture
def engine(clock: Clock) -> Interrupted:
    return Interrupted(clock)


def rules(caller: str, quota: int = 100) -> list[Charge]:
    """What a caller is charged: by two rules of its own, and by one that all callers share."""
    return [charge(quota, f"user:{caller}"), charge(quota, f"ip:{caller}"), charge(quota, "all", usage="all|")]


def test_a_first_request_is_one_call_of_the_charges_as_they_are(process: Process, engine: Counted) -> None:
    one, asked = process(), [rules(f"{number}") for number in range(5)]
    for each in asked:
        assert one.check(each, version=None)[2].allowed
    assert engine.calls == asked
    assert not one.counters.by_name
    one.flush()
    assert len(engine.calls) == 5
    assert counts(engine) == {"all|": (5, 0, 0, 0)}


def test_the_second_one_is_counted_here(process: Process, engine: Counted, clock: Clock) -> None:
    one = process()
    found = [[each.remaining for each in one.check(rules("ann", 4))] for _ in range(5)]
    assert found == [[3] * 3, [2] * 3, [1] * 3, [0] * 3, [0] * 3]
    assert len(engine.calls) == 1
    clock.now += INTERVAL
    one.check(rules("ann", 4))
    assert [each.carried for each in engine.calls[-1]] == [3] * 3


def test_who_comes_again_after_the_interval_is_asked_for_as_at_first(
    process: Process, engine: Counted, clock: Clock
) -> None:
    one = process()
    for _ in range(3):
        one.check(rules("ann"))
        clock.now += INTERVAL
    assert engine.calls == [rules("ann")] * 3
    one.check(rules("ann"))
    one.check(rules("ann"))
    clock.now += INTERVAL
    one.check(rules("ann"))  # tells of that one
    clock.now += INTERVAL
    one.check(rules("ann"))
    assert engine.calls[-1] == rules("ann")


def test_a_shared_counter_that_is_counted_here_admits_the_quota(process: Process, engine: Counted) -> None:
    one = process()
    shared = [charge(9, "all"), charge(4, "all")][1]
    asked = [[charge(9, name), shared] for name in ("ann", "ann", "ben", "cleo", "dan", "eve")]
    found = [one.check(each) for each in asked]
    assert [each[1].allowed for each in found] == [True] * 4 + [False] * 2
    assert [each[1].remaining for each in found] == [3, 2, 1, 0, 0, 0]
    one.flush()
    assert held(engine, shared) == 4


def alone(charge: Charge) -> list[Charge]:
    """A call of one charge."""
    return [charge]


def filled(charge: Charge) -> FilledCharges:
    """The same from a template."""
    template = CallTemplate([ChargeTemplate("", "", charge._replace(key="", partition=""))])
    return FilledCharges(template, (charge.key,))


WAYS = pytest.mark.parametrize("made", [alone, filled])


@WAYS
def test_what_others_do_while_the_engine_is_asked_is_counted(process: Process, engine: Interrupted, made: Any) -> None:
    """Another thread asks meanwhile, and a third one goes on by the answer that has come first."""
    one, asked = process(), charge(4)
    found: list[bool] = []

    def hit(times: int) -> None:
        found.extend(one.check(made(asked))[0].allowed for _ in range(times))

    engine.before = lambda: hit(9)
    hit(1)
    assert sum(found) == 4
    hit(3)
    assert (sum(found), held(engine, asked) <= 4) == (4, True)


@WAYS
def test_an_answer_that_comes_late_is_counted_once(
    process: Process, engine: Interrupted, clock: Clock, made: Any
) -> None:
    one, asked = process(), charge(10)

    def hit(times: int = 2) -> int:
        clock.now += 0.001
        return sum(one.check(made(asked))[0].allowed for _ in range(times))

    engine.after = hit
    assert hit() == 2
    assert hit(10) == 6
    one.flush()
    assert held(engine, asked) == 10


def test_where_the_engine_is_away_nothing_is_noted_or_spent(process: Process, engine: Counted) -> None:
    one = process()
    admitted(one, charge(5, "all"), 2)
    engine.down = True
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            one.check([charge(5, "ann"), charge(5, "all")])
    engine.down = False
    assert [each.remaining for each in one.check([charge(5, "ann"), charge(5, "all")])] == [4, 2]


def test_a_refusal_is_repeated_until_the_interval_is_over(process: Process, engine: Counted, clock: Clock) -> None:
    one, other, asked = process(), process(), charge(1, algorithm="sliding_window_log", window=1)
    other.check([asked])
    clock.now += 0.9
    [refused] = one.check([asked])
    assert (refused.allowed, refused.retry_after) == (False, pytest.approx(INTERVAL))
    assert admitted(one, asked, 9) == 0
    assert len(engine.calls) == 2


def test_a_reset_is_asked_for(process: Process, engine: Counted) -> None:
    one, asked = process(), charge(1)
    one.check([asked])
    one.reset([asked])
    assert one.check([asked])[0].allowed


def test_no_more_than_so_many_are_noted(process: Process, engine: Counted, clock: Clock) -> None:
    one = process(max_counters=10)
    for number in range(30):
        one.check([charge(5, f"{number}")])
    assert len(one.counters.first_calls) + len(one.counters.by_name) <= 10
    clock.now += 2 * INTERVAL
    one.check([charge(5, "later")])
    assert admitted(one, charge(5, "later"), 9) == 4
    assert len(engine.calls) == 31


def test_usage_that_was_counted_here_travels_within_a_second(process: Process, engine: Counted, clock: Clock) -> None:
    one = process()
    for number in range(40):
        one.check(rules(f"{number}"))
        one.check(rules(f"{number}"))
        clock.now += INTERVAL / 10
    assert counts(engine)["all|"][0] >= 80 - 2 * 10
    one.flush()
    assert counts(engine)["all|"][0] <= 2 * 10


def test_a_reset_while_the_engine_is_asked_counts(process: Process, engine: Interrupted) -> None:
    """What the engine has said before is not repeated."""
    one, other, asked = process(), process(), charge(1)
    other.check([asked])
    engine.after = lambda: one.reset([asked])
    assert not one.check([asked])[0].allowed
    assert one.check([asked])[0].allowed


def test_where_there_was_no_room_nothing_spent_is_forgotten(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(max_counters=8), charge(10, "late")
    for number in range(8):
        admitted(one, charge(5, f"{number}"), 2)
    assert sum(one.check(call)[0].allowed for call in [filled(asked)] * 9) == 9
    for number in range(8):
        one.reset([charge(5, f"{number}")])
    assert sum(one.check(call)[0].allowed for call in [filled(asked)] * 9) == 1


def test_there_are_no_more_counters_than_room(process: Process, engine: Counted) -> None:
    one = process(max_counters=20)
    views = [CallTemplate([ChargeTemplate(name, "", charge(9, "")) for name in names]) for names in ("ab", "ac")]
    for number in range(60):
        for view in views:
            one.check(FilledCharges(view, (f":{number}",) * 2))
    assert len(one.counters.by_name) <= 20


def test_a_counter_that_is_made_while_the_engine_is_asked_hears_of_it(process: Process, engine: Interrupted) -> None:
    """Another thread makes it between the look at what is known and the call."""
    one, asked = process(), charge(10)
    assert one.check(filled(asked))[0].allowed
    looks = one.counters.first_calls

    def look(charges: Any, now: float) -> bool:
        monkeypatched.undo()
        admitted(one, asked, 2)
        return True

    with pytest.MonkeyPatch.context() as monkeypatched:
        monkeypatched.setattr(looks, "is_first", look)
        one.check(filled(asked))
    assert sum(one.check(filled(asked))[0].allowed for _ in range(12)) == 6


def view(name: str) -> CallTemplate:
    """A view with a rule by address, and one whose counter all callers share."""
    made = [charge(1_000, partition=""), charge(1_000, partition="")]
    parts = zip((f"{name}-own:", f"{name}-all:"), made, (True, False), strict=True)
    return CallTemplate([ChargeTemplate(before, "", each, is_split) for before, each, is_split in parts])


def test_those_who_come_often_to_one_view_make_nothing_of_those_who_come_once_to_another(
    process: Process, engine: Counted
) -> None:
    """Else each of the latter would pay for the counter that they share with all others."""
    one, often, once = process(), view("often"), view("once")
    for number in range(5):
        one.check(FilledCharges(once, (f"once{number}", "all")))
        one.check(FilledCharges(often, ("often", "all")))
    assert [name for name in one.counters.by_name if name.startswith("once")] == []
    assert [name for name in one.counters.by_name if name.startswith("often")]
    assert len(engine.calls) == 5 + 2


def test_views_with_nothing_but_a_shared_counter_are_counted_here_in_turn(process: Process, engine: Counted) -> None:
    one = process()
    views = [CallTemplate([ChargeTemplate(f"{name}:", "", charge(1_000, partition=""), False)]) for name in "ab"]
    for _ in range(5):
        for each in views:
            one.check(FilledCharges(each, ("all",)))
    assert len(engine.calls) <= 4


@pytest.mark.parametrize("made", [alone, filled])
def test_what_callers_leave_who_come_once_is_forgotten(process: Process, clock: Clock, made: Any) -> None:
    one = process()
    for number in range(50):
        one.check(made(charge(9, f"{number}")))
    assert len(one.counters.first_calls) == 50
    clock.now += TIDY_SECONDS
    one.check(made(charge(9, "last")))
    assert len(one.counters.first_calls) == 1
