"""Purely local rules on a virtual clock: each process decides alone, in its memory."""

from __future__ import annotations

import random

import pytest

from django_ratelimiter.engine import EngineUnavailable, MemoryEngine, StaleRules

from .world import START_US, Clock, Counted, Process, admitted, charge, counts, held

WINDOWS = ["fixed_window", "sliding_window_counter", "sliding_window_slots", "token_bucket", "sliding_window_log"]


def test_the_engine_is_asked_for_the_version_alone(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(), charge(5, sync_interval=-1.0)
    engine.publish(1)
    assert admitted(one, asked, 9, version=1) == 5
    assert [*map(len, engine.calls)] == [0]


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_one_process_keeps_to_the_quota_and_says_when(process: Process, clock: Clock, algorithm: str) -> None:
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


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_what_was_spent_counts_from_when_it_was(process: Process, clock: Clock, algorithm: str) -> None:
    one, exact = process(), MemoryEngine(clock.us)
    asked, chance = charge(5, algorithm=algorithm, window=10, sync_interval=-1.0), random.Random(1)
    for _ in range(400):
        clock.now += chance.choice([0, 0.2, 1.5, 7.0])
        cost = chance.choice([1, 1, 3])
        [here], [there] = one.check([asked._replace(cost=cost)]), exact.check([asked._replace(cost=cost)])
        assert (here.allowed, here.remaining) == (there.allowed, there.remaining)
        assert here.retry_after == pytest.approx(there.retry_after, abs=2e-6)


def test_a_greater_cost_is_told_to_wait_longer(process: Process, clock: Clock) -> None:
    options = {"algorithm": "sliding_window_slots", "window": 10, "sync_interval": -1.0}
    one, asked = process(), charge(3, **options)
    for _ in range(3):
        one.check([asked])
        clock.now += 2
    waits = [one.check([asked._replace(cost=cost)])[0].retry_after for cost in (1, 3, 1, 3)]
    assert waits[:2] == waits[2:]
    assert waits[1] == pytest.approx((waits[0] or 0) + 4)


def test_each_process_has_the_whole_quota(process: Process) -> None:
    asked = charge(5, sync_interval=-1.0)
    assert [admitted(process(), asked, 9) for _ in range(3)] == [5, 5, 5]


def test_refunds_and_resets(process: Process, clock: Clock) -> None:
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


def test_charges_beside_it_are_decided_by_the_engine_and_all_or_nothing(process: Process, engine: Counted) -> None:
    one, local, exact = process(), charge(3, "local", sync_interval=-1.0), charge(2, "exact", sync_interval=None)
    found = [one.check([local, exact]) for _ in range(4)]
    assert [[each.allowed for each in verdicts] for verdicts in found] == [[True, True]] * 2 + [[True, False]] * 2
    assert [each.remaining for each in found[-1]] == [1, 0]
    assert admitted(one, local, 5) == 1
    assert [each.allowed for each in one.check([local, exact])] == [False, False]
    assert held(engine, exact) == 2


def test_where_it_rejects_the_engine_charges_nothing(process: Process, engine: Counted) -> None:
    one, local, exact = process(), charge(1, "local", sync_interval=-1.0), charge(9, "exact", sync_interval=None)
    near = charge(9, "near")
    for _ in range(4):
        found = one.check([local, exact, near])
    assert [each.allowed for each in found] == [False, True, True]
    assert (held(engine, exact), held(engine, near)) == (1, 1)


def test_what_another_thread_has_used_up_meanwhile_rejects_all(process: Process, engine: Counted) -> None:
    one, local, exact = process(), charge(1, "local", sync_interval=-1.0), charge(9, "exact", sync_interval=None)
    engine.during = lambda: one.check([local])
    assert [(each.allowed, each.spent) for each in one.check([local, exact])] == [(False, 0), (True, 0)]
    assert held(engine, exact) == 0


def test_receipts_are_refunded_where_they_are_from(process: Process, engine: Counted) -> None:
    one, local, exact = process(), charge(1, "local", sync_interval=-1.0), charge(1, "exact", sync_interval=None)
    earlier = one.check([exact])
    one.check([local])
    assert not one.check([local], refund_if_denied=earlier)[0].allowed
    assert (held(engine, exact), earlier[0].spent) == (0, 0)
    one.reset([local])
    earlier = one.check([local])
    one.check([exact])
    assert not one.check([exact], refund_if_denied=earlier)[0].allowed
    assert one.peek([local])[0].remaining == 1


def test_without_the_engine_what_is_charged_here_is_refunded(process: Process, engine: Counted) -> None:
    one, local, exact = process(), charge(9, "local", sync_interval=-1.0), charge(9, "exact", sync_interval=None)
    engine.down = True
    with pytest.raises(EngineUnavailable):
        one.check([local, exact])
    assert one.peek([local])[0].remaining == 9


def test_new_rules_are_heard_of(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(ask_interval=1.0), charge(9, sync_interval=-1.0)
    engine.publish(1)
    admitted(one, asked, 3, version=1)
    engine.publish(2)
    clock.now += 1.0
    with pytest.raises(StaleRules):
        one.check([asked], version=1)
    assert one.check([asked], version=2)[0].remaining == 5


def test_each_request_is_counted_once(process: Process, engine: Counted, clock: Clock) -> None:
    one, local = process(), charge(4, "local", sync_interval=-1.0, usage="local|")
    exact, near = charge(6, "exact", sync_interval=None, usage="exact|"), charge(50, "near", usage="near|")
    for _ in range(8):
        one.check([exact, local, near])
        clock.now += 0.4
    one.flush()
    batches = engine.memory.take_usage(now_us=2 * START_US)
    requests = [count[2:5] for batch in batches for count in engine.memory.read_requests(batch)]
    assert [*map(sum, zip(*requests, strict=True))] == [4, 4, 0]  # each request once: allowed, rejected, in shadow
    assert counts(engine) == {"exact": (4, 0, 0, 0), "near": (4, 0, 0, 0), "local": (4, 4, 0, 0)}
