"""Callers who come once in an interval: one call each, as by an exact rule, and only their partition is kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, EngineUnavailable, Verdict
from django_ratelimiter.engine.call import Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.local.counter import LocalCounter
from django_ratelimiter.engine.redis import RedisEngine

from .world import INTERVAL, Clock, Counted, Process, admitted, charge, counts, held, over


class Interrupted(Counted):
    """An engine during whose calls something else happens, before or after it has decided."""

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


def rules(caller: str, quota: int = 100) -> Call:
    """What a caller is charged: by two rules of its own, and by one that all callers share."""
    return Call(TEMPLATES[quota], (f"user {caller}", f"ip {caller}", ""))


def template(quota: int) -> CallTemplate:
    """The template of `rules`."""
    labels = {"user": None, "ip": None, "all": "all|"}
    return CallTemplate(
        [ChargeTemplate(f"{name}:", "", charge(quota, "", usage=labels[name]), name != "all") for name in labels]
    )


TEMPLATES = {quota: template(quota) for quota in (4, 9, 100)}


def remaining(one: Any, charges: Any) -> list[int]:
    return [each.remaining for each in one.check(charges)]


def test_a_first_request_is_one_call_and_only_the_partitions_are_kept(process: Process, engine: Counted) -> None:
    one, asked = process(), [rules(f"{number}") for number in range(5)]
    for each in asked:
        assert one.check(each)[2].allowed
    assert engine.calls == asked
    assert not one.counters.by_name
    assert list(one.counters.seen) == [f"{kind} {number}" for number in range(5) for kind in ("user", "ip")]
    one.flush()
    assert len(engine.calls) == 5
    assert counts(engine) == {"all|": (5, 0, 0, 0)}


def test_the_second_one_makes_counters_and_the_third_is_counted_here(
    process: Process, engine: Counted, clock: Clock
) -> None:
    one = process()
    assert [remaining(one, rules("ann", 4)) for _ in range(5)] == [[3] * 3, [2] * 3, [1] * 3, [0] * 3, [0] * 3]
    assert len(engine.calls) == 2
    clock.now += INTERVAL
    one.check(rules("ann", 4))
    assert [each.carried for each in engine.calls[-1]] == [2] * 3


def test_a_caller_with_two_rules_has_not_come_twice(process: Process, engine: Counted) -> None:
    one = process()
    one.check([charge(9, "minute:ann", partition="ann"), charge(9, "hour:ann", partition="ann")])
    assert (list(one.counters.seen), one.counters.by_name) == (["ann"], {})


def test_who_comes_again_after_the_interval_is_as_new(process: Process, engine: Counted, clock: Clock) -> None:
    one = process()
    for _ in range(3):
        one.check(rules("ann"))
        clock.now += INTERVAL
    assert len(engine.calls) == 3
    assert not one.counters.by_name


def test_a_shared_counter_that_is_known_here_is_left_out(process: Process, engine: Counted) -> None:
    """Calls for callers who are new do not touch it, and they are rejected where it is used up."""
    one = process()
    found = [one.check(rules(name, 9)) for name in ("ann", "ann", "ann", "ben", "cleo")]
    assert [each[2].remaining for each in found] == [8, 7, 6, 5, 4]
    assert [len(list(call)) for call in engine.calls] == [3, 3, 2, 2]
    assert [one.check(rules(f"{number}", 9))[2].allowed for number in range(6)] == [True] * 4 + [False] * 2
    one.flush()
    assert held(engine, next(iter(rules("", 9)))._replace(key="all:")) == 9
    assert counts(engine) == {"all|": (9, 2, 0, 0)}


def test_usage_of_a_rule_is_counted_once_if_it_is_decided_in_both_places(process: Process, engine: Counted) -> None:
    one = process()
    wide, narrow = (ChargeTemplate(name, "", charge(9, "", usage="rule|")) for name in ("wide:", "narrow:"))
    both, only = CallTemplate([wide, narrow]), CallTemplate([wide])
    for _ in range(3):
        one.check(Call(only, ("ann",)))
    for name in ("ann", "ben"):
        one.check(Call(both, (name, name)))
    one.flush()
    assert counts(engine) == {"rule|": (5, 0, 0, 0)}


def test_an_answer_that_comes_late_is_counted_once(process: Process, engine: Interrupted) -> None:
    one, asked = process(), charge(10, partition="key")

    def hit(times: int) -> int:
        return sum(one.check([asked])[0].allowed for _ in range(times))

    hit(1)
    found: list[int] = []
    engine.after = lambda: found.append(hit(3))  # meanwhile others ask, for the counter is not known yet
    assert (hit(1), found) == (1, [3])
    assert hit(10) == 5
    one.flush()
    assert held(engine, asked) == 10


def test_where_the_engine_is_away_nothing_is_spent(process: Process, engine: Counted) -> None:
    one = process()
    admitted(one, charge(5, "all"), 3)
    engine.down = True
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            one.check([charge(5, "ann"), charge(5, "all")])
    engine.down = False
    assert [each.remaining for each in one.check([charge(5, "ann"), charge(5, "all")])] == [4, 1]


def test_a_reset_is_asked_for_also_during_a_call(process: Process, engine: Interrupted) -> None:
    one, asked = process(), charge(2)
    assert admitted(one, asked, 3) == 2
    engine.after = lambda: one.reset([asked])
    one.check([asked._replace(key="other")])
    assert admitted(one, asked, 3) == 2
    one.reset([asked])
    engine.after = lambda: one.reset([asked])
    admitted(one, asked, 1)
    assert admitted(one, asked, 3) == 2


def test_no_more_than_so_many_callers_and_counters_are_kept(process: Process, engine: Counted, clock: Clock) -> None:
    one = process(max_counters=10)
    for number in range(30):
        one.check([charge(5, f"{number}", partition=f"{number}")])
    assert len(one.counters.seen) <= 10
    for number in range(60):
        admitted(one, charge(9, f"{number}"), 3)
    assert len(one.counters.by_name) <= 10
    assert len(one.counters.partitions) <= 10


def test_usage_that_was_counted_here_travels_within_a_second(process: Process, engine: Counted, clock: Clock) -> None:
    one = process()
    for number in range(40):
        for _ in range(3):
            one.check(rules(f"{number}"))
        clock.now += INTERVAL / 10
    assert counts(engine)["all|"][0] >= 120 - 3 * 10
    one.flush()
    assert counts(engine)["all|"][0] <= 3 * 10


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
        one.check(Call(once, (f"once{number}", "all of once")))
        one.check(Call(often, ("often", "all of often")))
    assert [name for name in one.counters.by_name if name.startswith("once")] == []
    assert [name for name in one.counters.by_name if name.startswith("often")]
    assert len(engine.calls) == 5 + 2


def test_views_with_nothing_but_a_shared_counter_are_counted_here_in_turn(process: Process, engine: Counted) -> None:
    one = process()
    views = [CallTemplate([ChargeTemplate(f"{name}:", "", charge(1_000, partition=""), False)]) for name in "ab"]
    for _ in range(5):
        for each in views:
            one.check(Call(each, ("all",)))
    assert len(engine.calls) <= 4


@given(
    seed=st.integers(0, 2**32),
    quota=st.integers(1, 12),
    calm=st.sampled_from([0.5, 0.9, 1.0]),
    fails=st.sampled_from([0, 0.2]),
)
def test_a_process_exceeds_the_quota_only_by_calls_under_way_when_it_makes_the_counter(
    seed: int, quota: int, calm: float, fails: float
) -> None:
    """However calls overlap, as those of several threads do."""
    clock, chance = Clock(), random.Random(seed)
    engine, asked = Interrupted(clock), charge(quota, window=86_400, partition="key")
    one = over(engine, clock)
    allowed, under_way, beside, add = 0, 0, [0], one.counters.add

    def make(name: str, counter: LocalCounter) -> None:
        beside.append(under_way - 1)
        add(name, counter)

    one.counters.add = make  # type: ignore[method-assign]

    def hit(depth: int = 0) -> None:
        nonlocal allowed, under_way
        clock.now += chance.choice([0.0, 0.001, 0.1, INTERVAL])
        if depth < 3 and chance.random() > calm:
            more = chance.randrange(6)
            setattr(engine, chance.choice(["before", "after"]), lambda: [hit(depth + 1) for _ in range(more)])
        engine.down, engine.lost = chance.random() < fails, chance.random() < fails
        under_way += 1
        with suppress(EngineUnavailable):
            [verdict] = one.check([asked])
            allowed += verdict.allowed
        under_way -= 1
        engine.before, engine.after, engine.down = None, None, False

    for _ in range(150):
        hit()
    assert allowed <= quota + max(beside)
    assert [each for each in one.counters.by_name.values() if each.pending or each.is_syncing] == []
    one.flush()
    if not fails:
        assert held(engine, asked) == min(allowed, quota)
    if calm == 1.0:
        assert allowed <= quota


def no_charge(_charges: Call) -> list[Charge]:
    raise AssertionError("No charge need be made.")


def test_who_passes_is_counted_without_making_a_charge(engine: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    one = over(engine, Clock())
    for _ in range(3):
        one.check(rules("a"))
    monkeypatch.setattr(Call, "_fill", no_charge)
    answer = one.check(rules("a"))
    assert (answer.is_local, list(answer.states.remaining)) == (True, [96] * 3)


def test_a_first_request_makes_none_either(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, call = RedisEngine(redis_client, "filled"), Call(TEMPLATES[9], ("a" * 22, "b" * 22, "c" * 22))
    for _ in range(2):  # in the first, the partitions are new in this hour
        engine.check(call)
    monkeypatch.setattr(Call, "_fill", no_charge)
    answer = over(engine, Clock()).check(call)
    assert (answer.is_local, list(answer.states.remaining)) == (False, [6] * 3)
