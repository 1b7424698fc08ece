"""Approximate mode on a virtual clock: what is decided in a process, what is asked, and what the engine then knows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import EngineUnavailable, Limit, MemoryEngine, StaleRules

from .world import (
    INTERVAL,
    START_US,
    WINDOW,
    Clock,
    Counted,
    Process,
    admitted,
    charge,
    counts,
    held,
    most_within,
    over,
)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_slots"])
def test_one_process_admits_the_quota_and_asks_once_an_interval(
    process: Process, engine: Counted, clock: Clock, algorithm: str
) -> None:
    one, asked = process(), charge(10, algorithm=algorithm)
    assert admitted(one, asked, 6) == 6
    assert (len(engine.calls), held(engine, asked)) == (2, 2)  # the second request makes the local counter
    clock.now += INTERVAL
    assert admitted(one, asked, 6) == 4
    assert (len(engine.calls), held(engine, asked)) == (3, 7)
    clock.now += INTERVAL
    assert admitted(one, asked, 6) == 0
    assert (len(engine.calls), held(engine, asked)) == (4, 10)


def test_verdicts_tell_what_is_left_and_when_to_come_back(process: Process, clock: Clock) -> None:
    one, asked = process(), charge(3)
    found = [one.check([asked])[0] for _ in range(4)]
    assert [each.remaining for each in found] == [2, 1, 0, 0]
    until_window_ends = WINDOW - START_US // 1_000_000 % WINDOW
    assert [each.retry_after for each in found] == [0, 0, 0, until_window_ends]
    assert {each.reset_after for each in found} == {until_window_ends}
    clock.now += 0.25
    later = one.check([asked])[0]
    assert (later.at_us, later.retry_after) == (START_US + 250_000, until_window_ends - 0.25)
    assert one.check([asked._replace(cost=4)])[0].retry_after is None


def test_a_sliding_window_tells_the_end_of_the_interval(process: Process, clock: Clock) -> None:
    one, asked = process(), charge(2, algorithm="sliding_window_counter")
    admitted(one, asked, 2)
    clock.now += 0.25
    assert one.check([asked])[0].retry_after == INTERVAL - 0.25


def test_a_rejection_by_the_engine_holds_for_the_interval_and_says_so(
    process: Process, engine: Counted, clock: Clock
) -> None:
    one, other, asked = process(), process(), charge(1, window=0.3, sync_interval=0.2)
    other.check([asked])
    waits = [one.check([asked])[0].retry_after for _ in range(2)]
    assert waits == [pytest.approx(0.1), pytest.approx(0.2)]  # the second rejection is repeated here
    calls = len(engine.calls)
    assert admitted(one, asked, 50) == 0
    assert len(engine.calls) == calls


def test_a_soft_quota_is_told(process: Process) -> None:
    one, asked = process(), charge(limit=Limit(4, WINDOW, "fixed_window", soft_quota=2))
    assert [one.check([asked])[0].soft_exceeded for _ in range(5)] == [False, False, True, True, False]


def test_cost_0_looks_and_spends_nothing(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(), charge(2)
    one.check([asked])
    assert [one.check([asked._replace(cost=0)])[0].remaining for _ in range(3)] == [1, 1, 1]
    assert one.check([asked])[0].allowed
    assert [(each.allowed, each.remaining) for each in one.check([asked._replace(cost=0)])] == [(True, 0)]


@pytest.mark.parametrize("cost", [-1, 1.0])
def test_a_cost_that_is_none_is_rejected_as_ever(process: Process, cost: Any) -> None:
    one, asked = process(), charge(2)
    one.check([asked])
    with pytest.raises(ValueError, match="cost"):
        one.check([asked._replace(cost=cost)])


def test_the_same_counter_twice_is_rejected_as_ever(process: Process) -> None:
    one, asked = process(), charge(9)
    one.check([asked])
    with pytest.raises(ValueError, match="twice"):
        one.check([asked, asked])


class TestSeveralCharges:
    def test_one_that_rejects_spends_nothing_of_the_others(self, process: Process, clock: Clock) -> None:
        one, tight, wide = process(), charge(1, "tight"), charge(9, "wide")
        assert [each.allowed for each in one.check([tight, wide])] == [True, True]
        for _ in range(3):
            found = one.check([tight, wide])
            assert [(each.allowed, each.remaining, each.spent) for each in found] == [(False, 0, 0), (True, 8, 0)]
        clock.now += INTERVAL
        assert [each.remaining for each in one.check([tight, wide])] == [0, 8]

    def test_an_exact_one_is_asked_each_time_and_stays_exact(self, process: Process, engine: Counted) -> None:
        one, exact, near = process(), charge(3, "exact", sync_interval=None), charge(9, "near")
        found = [one.check([exact, near]) for _ in range(5)]
        assert [each[0].remaining for each in found] == [2, 1, 0, 0, 0]
        assert [each[1].remaining for each in found] == [8, 7, 6, 6, 6]
        assert [len(call) for call in engine.calls] == [2, 2, 1, 1, 1]

    def test_an_exact_one_spends_nothing_where_this_process_rejects(self, process: Process, engine: Counted) -> None:
        one, exact, near = process(), charge(9, "exact", sync_interval=None), charge(1, "near")
        found = [one.check([exact, near]) for _ in range(3)]
        assert [[each.allowed for each in verdicts] for verdicts in found] == [
            [True, True],
            [True, False],
            [True, False],
        ]
        assert (held(engine, exact), found[-1][0].spent) == (1, 0)

    def test_a_shadow_stops_nobody_and_spends_only_what_it_admits(self, process: Process, clock: Clock) -> None:
        one, shadow, near = process(), charge(1, "shadow", gating=False), charge(3, "near")
        found = [one.check([shadow, near]) for _ in range(4)]
        assert [[each.allowed for each in verdicts] for verdicts in found] == [
            [True, True],
            [False, True],
            [False, True],
            [False, False],
        ]
        assert [each.spent for each in found[-1]] == [0, 0]

    def test_one_that_fails_with_the_engine_spends_nothing_here(self, process: Process, engine: Counted) -> None:
        one, exact, near = process(), charge(9, "exact", sync_interval=None), charge(5, "near")
        one.check([exact, near])
        engine.down = True
        with pytest.raises(EngineUnavailable):
            one.check([exact, near])
        engine.down = False
        assert one.check([near])[0].remaining == 3

    def test_a_counter_that_tells_what_it_owes_is_not_asked_for_twice(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, free, pro = process(max_counters=1), charge(3, count_refusals=True), charge(10)
        admitted(one, free, 4)
        clock.now += INTERVAL
        admitted(one, free, 2)
        clock.now += INTERVAL
        assert [each.allowed for each in one.check([charge(5, "other"), pro])] == [True, True]


class TestCarrying:
    def test_a_lost_reply_counts_units_twice_at_most_and_usage_once(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked = process(), charge(100, usage="rule|")
        admitted(one, asked, 5)
        clock.now += INTERVAL
        engine.lost = True
        with pytest.raises(EngineUnavailable):
            one.check([asked])
        one.check([asked])
        assert 7 <= held(engine, asked) <= 7 + 4
        assert counts(engine) == {"rule|": (7, 0, 0, 0)}

    def test_nothing_is_carried_once_its_window_is_over(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(10, window=60)
        clock.now = 60 - START_US // 1_000_000 % 60  # a window of the clock begins
        admitted(one, asked, 8)
        clock.now += 60
        assert one.check([asked])[0].remaining == 9
        assert engine.calls[-1][0].carried == 0

    def test_what_is_still_of_account_is_carried(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(10, window=60, algorithm="sliding_window_counter")
        admitted(one, asked, 8)
        clock.now += 59
        one.check([asked])
        assert engine.calls[-1][0].carried == 6

    def test_a_process_that_ends_tells_all(self, process: Process, engine: Counted) -> None:
        one, asked, local = (
            process(),
            charge(100, usage="rule|"),
            charge(9, "local", usage="local|", sync_interval=-1.0),
        )
        admitted(one, asked, 5)
        admitted(one, local, 5)
        one.flush()
        assert held(engine, asked) == 5
        assert counts(engine) == {"rule|": (5, 0, 0, 0), "local|": (5, 0, 0, 0)}
        calls = len(engine.calls)
        one.flush()
        assert len(engine.calls) == calls

    def test_a_process_that_ends_without_the_engine_raises_nothing(self, process: Process, engine: Counted) -> None:
        one = process()
        admitted(one, charge(100), 5)
        engine.down = True
        one.flush()

    def test_usage_is_counted_once_whatever_is_asked(self, process: Process, engine: Counted, clock: Clock) -> None:
        one = process()
        exact, near = charge(6, "exact", usage="exact|", sync_interval=None), charge(4, "near", usage="near|")
        twin = charge(50, "twin", usage="near|", window=60)
        shadow = charge(1, "shadow", usage="shadow|", gating=False)
        for _ in range(8):
            one.check([exact, near, twin, shadow])
            clock.now += 0.4
        one.flush()
        batches = [engine.memory.read_requests(batch)[2:5] for batch in engine.memory.take_usage(now_us=2 * START_US)]
        assert [*map(sum, zip(*batches, strict=True))] == [1, 4, 3]  # each request once: allowed, rejected, in shadow
        assert counts(engine) == {"exact|": (8, 0, 0, 0), "near|": (4, 4, 0, 0), "shadow|": (1, 0, 7, 0)}


class TestRefunds:
    def test_what_the_engine_does_not_know_of_is_given_back_here(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(4)
        admitted(one, asked, 2)
        spent = one.check([asked])
        one.refund(spent)
        one.refund(spent)
        assert spent[0].spent == 0
        assert one.check([asked])[0].remaining == 1
        assert len(engine.calls) == 2

    def test_what_it_knows_of_is_given_back_there(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(9)
        admitted(one, asked, 2)
        spent = one.check([asked])
        clock.now += INTERVAL
        one.check([asked])
        assert held(engine, asked) == 4
        one.refund(spent)
        assert held(engine, asked) == 3

    def test_a_rejected_call_gives_back_what_an_earlier_one_spent_here(self, process: Process, engine: Counted) -> None:
        one, near, tight = process(), charge(9), charge(1, "tight", sync_interval=None)
        admitted(one, near, 2)
        one.check([tight])
        earlier = one.check([near])
        assert not one.check([tight], refund_if_denied=earlier)[0].allowed
        assert (earlier[0].spent, one.check([near])[0].remaining) == (0, 6)

    def test_a_rejection_here_gives_back_what_an_earlier_call_spent_there(
        self, process: Process, engine: Counted
    ) -> None:
        one, near, exact = process(), charge(2), charge(9, "exact", sync_interval=None)
        admitted(one, near, 2)
        earlier = one.check([exact])
        assert not one.check([near], refund_if_denied=earlier)[0].allowed
        assert held(engine, exact) == 0

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_slots"])
    def test_what_was_given_back_there_is_waited_for_until_it_is_asked(
        self, process: Process, engine: Counted, clock: Clock, algorithm: str
    ) -> None:
        one, asked = process(), charge(1, algorithm=algorithm, window=60)
        spent = one.check([asked])
        assert not one.check([asked])[0].allowed
        clock.now += INTERVAL
        assert not one.check([asked])[0].allowed
        one.refund(spent)
        wait = one.check([asked])[0].retry_after
        assert wait == pytest.approx(INTERVAL)
        clock.now += wait
        assert one.check([asked])[0].allowed


def test_rejections_that_count(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(), charge(5, count_refusals=True)
    admitted(one, asked, 4)
    assert not one.check([asked._replace(cost=3)])[0].allowed
    assert not one.check([asked])[0].allowed
    clock.now += INTERVAL
    one.check([asked])
    assert held(engine, asked) == 5


class TestVersions:
    def test_rules_that_were_replaced_are_heard_of_within_the_interval(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked = process(ask_interval=0.5), charge(100, sync_interval=30.0)
        engine.publish(1)
        assert admitted(one, asked, 3, version=1) == 3
        engine.publish(2)
        clock.now += 0.4
        assert admitted(one, asked, 3, version=1) == 3
        clock.now += 0.1
        with pytest.raises(StaleRules):
            one.check([asked], version=1)
        assert one.check([asked], version=2)[0].remaining == 93

    def test_a_new_version_is_confirmed_at_once_and_keeps_what_was_spent(
        self, process: Process, engine: Counted
    ) -> None:
        one, asked = process(), charge(10)
        engine.publish(1)
        admitted(one, asked, 6, version=1)
        engine.publish(2)
        calls = len(engine.calls)
        lowered = asked._replace(limit=Limit(8, WINDOW, "fixed_window"))
        assert admitted(one, lowered, 6, version=2) == 2
        assert len(engine.calls) == calls + 1

    def test_the_version_is_asked_for_once_an_interval(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(ask_interval=1.0), charge(1_000, sync_interval=100.0)
        engine.publish(1)
        for _ in range(100):
            one.check([asked], version=1)
            clock.now += 0.1
        assert len(engine.calls) == 11

    def test_callers_of_two_tiers_share_a_counter(self, process: Process, engine: Counted) -> None:
        one, free, pro = process(), charge(3), charge(10)
        assert admitted(one, free, 5) == 3
        assert admitted(one, pro, 9) == 7
        assert admitted(one, free, 1) == 0
        assert len(engine.calls) == 2

    @pytest.mark.parametrize("interval", [INTERVAL, -1.0])
    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_slots"])
    def test_the_smaller_one_tells_all_that_the_larger_one_has_spent(
        self, process: Process, clock: Clock, algorithm: str, interval: float
    ) -> None:
        one = process()
        free, pro = (charge(quota, algorithm=algorithm, sync_interval=interval) for quota in (2, 10))
        found = []
        for _ in range(5):
            found += [admitted(one, pro, 7)]
            clock.now += INTERVAL
            assert not one.check([free])[0].allowed
        assert found == [7, 3, 0, 0, 0]

    def test_where_the_smaller_one_is_used_up_the_larger_one_asks(self, process: Process, engine: Counted) -> None:
        other, one, free, pro = process(), process(), charge(3), charge(10)
        admitted(other, pro, 6)
        other.flush()
        assert admitted(one, free, 2) == 0
        assert admitted(one, pro, 9) == 4

    def test_a_call_without_charges_asks_for_it_whatever_was_asked_just_now(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked = process(), charge(9, sync_interval=100.0, usage="rule|")
        engine.publish(1)
        admitted(one, asked, 3, version=1)
        engine.publish(2)
        clock.now += 0.9
        with pytest.raises(StaleRules):
            one.check([], version=1)

    @pytest.mark.parametrize("interval", [INTERVAL, -1.0])
    def test_one_tier_is_not_told_to_wait_as_long_as_another(
        self, process: Process, clock: Clock, interval: float
    ) -> None:
        options = {"algorithm": "sliding_window_counter", "window": 60, "sync_interval": interval}
        one, free, pro = process(), charge(2, **options), charge(10, **options)
        clock.now = 60 - START_US // 1_000_000 % 60  # a window of the clock begins
        admitted(one, pro, 10)
        clock.now += INTERVAL
        admitted(one, free, 1)
        clock.now += 60
        assert (one.check([free])[0].retry_after or 0) > 20
        admitted(one, pro, 10)
        assert (one.check([pro])[0].retry_after or 60) <= 6


class TestPurelyLocal:
    def test_the_engine_is_asked_for_the_version_alone(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(5, sync_interval=-1.0)
        engine.publish(1)
        assert admitted(one, asked, 9, version=1) == 5
        assert [*map(len, engine.calls)] == [0]

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_slots"])
    def test_one_process_keeps_to_the_quota_and_says_when(self, process: Process, clock: Clock, algorithm: str) -> None:
        one, asked = process(), charge(5, algorithm=algorithm, window=10, sync_interval=-1.0)
        for _ in range(6):
            granted = 0
            while True:
                found = one.check([asked])[0]
                if not found.allowed:
                    break
                granted += 1
            assert 1 <= granted <= 5
            assert found.retry_after
            clock.now += found.retry_after - 0.01
            assert not one.check([asked])[0].allowed
            clock.now += 0.011

    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_slots"])
    def test_what_was_spent_counts_from_when_it_was(self, process: Process, clock: Clock, algorithm: str) -> None:
        one, exact = process(), MemoryEngine(clock.us)
        asked, chance = charge(5, algorithm=algorithm, window=10, sync_interval=-1.0), random.Random(1)
        for _ in range(400):
            clock.now += chance.choice([0, 0.2, 1.5, 7.0])
            cost = chance.choice([1, 1, 3])
            [here], [there] = one.check([asked._replace(cost=cost)]), exact.check([asked._replace(cost=cost)])
            assert (here.allowed, here.remaining) == (there.allowed, there.remaining)
            assert here.retry_after == pytest.approx(there.retry_after, abs=2e-6)

    def test_a_greater_cost_is_told_to_wait_longer(self, process: Process, clock: Clock) -> None:
        options = {"algorithm": "sliding_window_slots", "window": 10, "sync_interval": -1.0}
        one, asked = process(), charge(3, **options)
        for _ in range(3):
            one.check([asked])
            clock.now += 2
        waits = [one.check([asked._replace(cost=cost)])[0].retry_after for cost in (1, 3, 1, 3)]
        assert waits[:2] == waits[2:]
        assert waits[1] == pytest.approx((waits[0] or 0) + 4)

    def test_each_process_has_the_whole_quota(self, process: Process) -> None:
        asked = charge(5, sync_interval=-1.0)
        assert [admitted(process(), asked, 9) for _ in range(3)] == [5, 5, 5]

    def test_refunds_and_resets(self, process: Process, clock: Clock) -> None:
        one, asked = process(), charge(5, sync_interval=-1.0, window=60)
        one.refund(one.check([asked]))
        spent = one.check(
            [
                asked,
            ]
        )
        clock.now += 0.2
        one.check([asked])
        one.refund(spent)
        assert one.peek([asked])[0].remaining == 4
        one.reset([asked])
        assert one.peek([asked])[0].remaining == 5


def test_peek_tells_what_is_left_here(process: Process, engine: Counted) -> None:
    one, asked, exact = process(), charge(5), charge(2, "exact", sync_interval=None)
    admitted(one, asked, 3)
    assert [each.remaining for each in one.peek([asked, exact])] == [2, 2]
    admitted(one, asked, 2)
    [found] = one.peek([asked])
    assert (found.allowed, found.remaining) == (False, 0)
    assert found.retry_after


def test_a_key_that_is_reset_is_forgotten_here_too(process: Process) -> None:
    one, asked = process(), charge(2)
    assert admitted(one, asked, 5) == 2
    one.reset([asked])
    assert admitted(one, asked, 5) == 2


class TestBoundedMemory:
    def test_further_keys_are_decided_exactly(self, process: Process, engine: Counted) -> None:
        one = process(max_counters=3)
        for number in range(20):
            assert admitted(one, charge(2, f"key-{number}"), 4) == 2
        assert len(one.counters.by_name) == 3

    def test_keys_that_nobody_uses_make_room_and_lose_nothing(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one = process(max_counters=3)
        keys = [charge(9, f"key-{number}") for number in range(12)]
        for asked in keys:
            admitted(one, asked, 3)
            clock.now += 2 * INTERVAL
        one.flush()
        assert [held(engine, asked) for asked in keys] == [3] * 12
        assert len(one.counters.by_name) <= 3

    def test_purely_local_keys_too(self, process: Process, clock: Clock) -> None:
        one = process(max_counters=3)
        keys = [charge(3, f"key-{number}", sync_interval=-1.0) for number in range(12)]
        assert [admitted(one, asked, 4) for asked in keys] == [3] * 12
        assert [admitted(one, asked, 4) for asked in keys] == [0] * 12
        assert len(one.counters.by_name) <= 3


def test_a_clock_that_is_stepped_back_admits_no_more(clock: Clock) -> None:
    """That of the server: this process's own never is."""
    shift = 0
    one, asked = over(MemoryEngine(lambda: clock.us() - shift), clock), charge(5, algorithm="sliding_window_counter")
    assert admitted(one, asked, 3) == 3
    shift = 30_000_000
    clock.now += INTERVAL
    assert admitted(one, asked, 9) == 2


@given(
    seed=st.integers(0, 2**32),
    processes=st.integers(1, 4),
    quota=st.integers(1, 40),
    interval=st.sampled_from([0.05, 0.3, 1.0]),
    pace=st.sampled_from([0.001, 0.02, 0.2]),
    algorithm=st.sampled_from(["fixed_window", "sliding_window_counter", "sliding_window_slots"]),
)
def test_processes_stay_within_the_bound(
    seed: int, processes: int, quota: int, interval: float, pace: float, algorithm: str
) -> None:
    """All together admit the quota, and what each but one admits in two intervals; each asks once an interval."""
    clock, chance = Clock(), random.Random(seed)
    engine = Counted(clock)
    ones = [over(engine, clock) for _ in range(processes)]
    asked = charge(quota, algorithm=algorithm, sync_interval=interval, window=86_400)
    moments: list[list[float]] = [[] for _ in ones]
    for _ in range(300):
        clock.now += chance.random() * pace
        which = chance.randrange(processes)
        cost = chance.choice([1, 1, 1, 2, 0])
        for each in ones[which].check([asked._replace(cost=cost)]):
            moments[which] += [clock.now] * (cost if each.allowed else 0)
    total = sum(map(len, moments))
    most = [most_within(each, 2 * interval) for each in moments]
    assert total <= quota + sum(most) - min(most)
    assert total >= min(quota, total)
    assert len(engine.calls) <= processes * (clock.now // interval + 2)
    assert all(len(each) <= quota for each in moments)
