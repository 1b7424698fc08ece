"""Denial memory on a virtual clock: which rejections are repeated, for how long, and what is counted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.usage import MAX_NAMED

from .world import Clock, Counted, Process, admitted, charge, counts, held

MEMORY = 5.0


def exact(quota: int = 1, key: str = "key", **fields: Any) -> Charge:
    return charge(quota, key, **{"sync_interval": None, **fields})


def test_a_rejection_is_repeated_and_the_engine_asked_once_in_so_long(
    process: Process, engine: Counted, clock: Clock
) -> None:
    one, asked = process(denial_memory=MEMORY), exact()
    engine.publish(1)
    waits = []
    for _ in range(101):
        [found] = one.check([asked], version=1)
        waits.append(found.retry_after)
        clock.now += 0.1
    assert waits[0] == 0.0
    assert [before - after for before, after in pairwise(waits[1:])] == pytest.approx([0.1] * 99, abs=2e-6)
    assert len(engine.calls) <= 2 + 10  # it is asked each second, for that tells of new rules as well


def test_nothing_is_repeated_once_the_caller_may_come_back(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(denial_memory=60.0), exact(limit=Limit(1, 2, "token_bucket"))
    one.check([asked])
    assert one.check([asked])[0].retry_after == 2.0
    clock.now += 1.99
    assert not one.check([asked])[0].allowed
    assert len(engine.calls) == 2
    clock.now += 0.011
    assert one.check([asked])[0].allowed


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra", "sliding_window_log", "leaky_bucket", "fixed_window"])
def test_of_any_algorithm(process: Process, engine: Counted, algorithm: str) -> None:
    one, asked = process(denial_memory=MEMORY), exact(algorithm=algorithm, max_delay=0.0)
    assert admitted(one, asked, 9) == 1
    assert len(engine.calls) == 2


def test_a_lease_that_was_rejected_is_asked_for_each_time(process: Process, engine: Counted) -> None:
    one, asked = process(denial_memory=MEMORY), exact(algorithm="concurrency")
    lease = one.check([asked])
    assert not one.check([asked])[0].allowed
    one.release(lease)
    assert one.check([asked])[0].allowed


@pytest.mark.parametrize(
    ("memory", "fields"),
    [(MEMORY, {"gating": False}), (MEMORY, {"count_refusals": True}), (MEMORY, {"cost": 2}), (None, {})],
    ids=["a shadow", "rejections that count", "what can never pass", "without the memory"],
)
def test_it_is_asked_for_each_time(
    process: Process, engine: Counted, memory: float | None, fields: dict[str, Any]
) -> None:
    admitted(process(**{"denial_memory": memory} if memory else {}), exact(**fields), 5)
    assert len(engine.calls) == 5


class TestCosts:
    def test_a_greater_cost_is_rejected_as_well_and_a_smaller_one_asked_for(
        self, process: Process, engine: Counted
    ) -> None:
        one, asked = process(denial_memory=MEMORY), exact(5)
        one.check([asked._replace(cost=4)])
        assert not one.check([asked._replace(cost=2)])[0].allowed
        calls = len(engine.calls)
        assert not one.check([asked._replace(cost=3)])[0].allowed
        assert len(engine.calls) == calls
        assert one.check([asked])[0].allowed

    def test_looking_is_no_rejection(self, process: Process) -> None:
        one, asked = process(denial_memory=MEMORY), exact()
        admitted(one, asked, 2)
        assert one.check([asked._replace(cost=0)])[0].allowed


class TestSeveralCharges:
    def test_all_of_a_call_have_to_be_known(self, process: Process, engine: Counted) -> None:
        one, tight, wide, other = process(denial_memory=MEMORY), exact(), exact(9, "wide"), exact(9, "other")
        admitted(one, tight, 1)
        for _ in range(4):
            found = one.check([tight, wide])
            assert [(each.allowed, each.remaining, each.spent) for each in found] == [(False, 0, 0), (True, 9, 0)]
        assert len(engine.calls) == 2
        one.check([tight, wide, other])
        assert len(engine.calls) == 3

    def test_what_stood_beside_a_rejection_is_no_rejection(self, process: Process, engine: Counted) -> None:
        one, tight, wide = process(denial_memory=MEMORY), exact(), exact(9, "wide")
        one.check([tight, wide])
        one.check([tight, wide])
        assert admitted(one, wide, 3) == 3
        assert held(engine, wide) == 4

    def test_a_shadow_beside_a_rejection_repeats_what_it_was_told(self, process: Process, engine: Counted) -> None:
        one, tight = process(denial_memory=MEMORY), exact(usage="tight|")
        shadow = exact(1, "shadow", gating=False, usage="shadow|")
        for _ in range(4):
            found = one.check([tight, shadow])
        assert [each.allowed for each in found] == [False, False]
        assert len(engine.calls) == 2
        one.flush()
        assert counts(engine) == {"tight": (1, 3, 0, 0), "shadow": (1, 0, 3, 0)}

    def test_one_of_which_units_are_fetched_may_stand_beside_it(self, process: Process, engine: Counted) -> None:
        one, tight, near = process(denial_memory=MEMORY), exact(), charge(2, "near")
        one.check([tight, near])
        for _ in range(4):
            assert [each.allowed for each in one.check([tight, near])] == [False, True]
        assert one.check([near])[0].remaining == 0
        assert len(engine.calls) == 3


def test_usage_is_counted_with_the_next_call(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(denial_memory=MEMORY), exact(usage="rule|free")
    admitted(one, asked, 10)
    assert counts(engine) == {"rule|free": (1, 1, 0, 0)}
    clock.now += MEMORY
    engine.lost = True
    with pytest.raises(EngineUnavailable):
        one.check([asked])
    one.check([asked])
    assert counts(engine) == {"rule|free": (0, 10, 0, 0)}


def test_whom_it_was_about_is_told_with_the_counts(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(denial_memory=MEMORY), exact(usage="rule|free")
    admitted(one, asked, 10)
    assert [each.times for each in engine.memory.recent_rejections()] == [1]
    clock.now += MEMORY
    one.check([asked])
    assert [(each.times, each.counter) for each in engine.memory.recent_rejections()] == [(10, "key" + asked.limit.tag)]


def test_of_a_flood_of_callers_only_some_are_told(process: Process, engine: Counted, clock: Clock) -> None:
    one = process(denial_memory=MEMORY)
    everybody = [exact(key=f"rule:{number}", usage="rule|free") for number in range(2 * MAX_NAMED)]
    for asked in everybody:
        admitted(one, asked, 3)
    for _ in range(3):
        clock.now += MEMORY
        one.check([exact(key="other")])
    assert counts(engine) == {"rule|free": (2 * MAX_NAMED, 4 * MAX_NAMED, 0, 0)}
    found = engine.memory.recent_rejections(rule="rule", limit=1_000)
    assert sum(each.times for each in found) >= MAX_NAMED
    assert all(each.is_estimate for each in found)


def test_a_call_that_gives_something_back_is_made(process: Process, engine: Counted) -> None:
    one, tight, wide = process(denial_memory=MEMORY), exact(), exact(9, "wide")
    admitted(one, tight, 2)
    earlier = one.check([wide])
    assert not one.check([tight], refund_if_denied=earlier)[0].allowed
    assert held(engine, wide) == 0


def test_a_limit_that_was_raised_for_a_caller_is_asked_for(process: Process) -> None:
    one, asked = process(denial_memory=60.0), exact()
    admitted(one, asked, 3)
    assert one.check([exact(5)])[0].allowed


def test_a_key_that_is_reset_is_forgotten(process: Process) -> None:
    one, asked = process(denial_memory=60.0), exact()
    admitted(one, asked, 3)
    one.reset([asked])
    assert one.check([asked])[0].allowed


def test_so_many_are_kept_and_no_more(process: Process, engine: Counted, clock: Clock) -> None:
    one = process(denial_memory=MEMORY, max_counters=3)
    for number in range(20):
        assert admitted(one, exact(1, f"key-{number}"), 3) == 1
    assert len(one.counters.hands) == 3
    calls = len(engine.calls)
    assert admitted(one, exact(1, "key-0"), 3) == 0
    assert len(engine.calls) == calls, "those that hold do not make room"
    clock.now += MEMORY
    admitted(one, exact(1, "later"), 3)
    calls = len(engine.calls)
    admitted(one, exact(1, "later"), 9)
    assert len(engine.calls) == calls


def test_where_rules_do_not_change_it_is_asked_once_in_so_long(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(denial_memory=MEMORY), exact()
    for _ in range(201):
        one.check([asked])
        clock.now += 0.1
    assert len(engine.calls) <= 2 + 4
