"""MemoryEngine keeps its memory bounded."""

from __future__ import annotations

import pytest

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine
from django_ratelimiter.engine.memory.engine import HELD_US, UNCOLLECTED_MINUTES, USAGE_MINUTES
from django_ratelimiter.engine.usage import UsageCarry

DAY = Limit(1, 86_400, "fixed_window")
MINUTE_US = 60_000_000


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra", "leaky_bucket"])
def test_a_lowered_quota_is_not_forgotten_before_the_time_that_was_promised(algorithm: str, looks: bool) -> None:
    """Also if somebody looks by the higher quota."""
    engine, charge = MemoryEngine(), Charge("ann", Limit(1_000, 3_600, algorithm))
    engine.check([charge], now_us=0)
    lowered = charge._replace(limit=Limit(1, 3_600, algorithm))
    rejected = engine.check([lowered], now_us=0)[0]
    assert (rejected.allowed, rejected.retry_after) == (False, 3_600)
    engine.peek([charge] if looks else [], now_us=0)
    for number in range(3_000):  # long after it would have been full by the higher quota
        engine.check([Charge(f"{number}", DAY)], now_us=60_000_000)
    assert engine.peek([lowered], now_us=60_000_000)[0].retry_after == 3_540


def test_the_most_that_it_shall_keep_are_the_latest() -> None:
    engine = MemoryEngine(max_counters=2_000)
    for number in range(20_000):
        engine.check([Charge(f"key{number}", DAY)], now_us=0)
    assert len(engine._counters) <= 4_001
    assert not engine.peek([Charge("key19999", DAY)], now_us=0)[0].allowed
    assert engine.peek([Charge("key0", DAY)], now_us=0)[0].allowed


@pytest.mark.parametrize("algorithm", [*Algorithm])
def test_a_clock_that_is_set_back_locks_no_caller_out(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    wall, since = [1_800_000_000], [500]
    monkeypatch.setattr("time.time_ns", lambda: wall[0] * 1_000_000_000)
    monkeypatch.setattr("time.monotonic_ns", lambda: since[0] * 1_000_000_000)
    engine = MemoryEngine()
    anchor = {"anchor": "first_request"} if algorithm == "fixed_window" else {}
    charge = Charge("ann", Limit(2, 60, algorithm, **anchor), max_delay=0)  # type: ignore[arg-type]
    while engine.check([charge])[0].allowed:
        pass
    wall[0] -= 3_600
    [rejected] = engine.peek([charge])
    assert not rejected.allowed
    assert rejected.retry_after is not None
    assert rejected.retry_after <= 120
    for clock in (wall, since):
        clock[0] += 120
    [verdict] = engine.check([charge])
    assert verdict.allowed
    assert verdict.reset_after <= 120
    engine.refund([verdict])
    assert engine.peek([charge])[0].reset_after == 0
    wall[0] += 7_200  # ahead again: both clocks agree
    assert engine.check([charge])[0].allowed


def test_windows_by_the_clock_follow_one_that_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = [1_800_000_000]
    monkeypatch.setattr("time.time_ns", lambda: wall[0] * 1_000_000_000)
    monkeypatch.setattr("time.monotonic_ns", lambda: 0)
    engine, day = MemoryEngine(), Limit(2, calendar="day", algorithm="fixed_window")
    both = [Charge("ann", day), Charge("bob", DAY), Charge("eve", Limit(2, 60))]
    engine.check(both)
    wall[0] -= 3_600
    assert [verdict.allowed for verdict in engine.check(both)] == [True, False, True]
    assert [verdict.remaining for verdict in engine.peek(both)] == [1, 0, 1]
    assert engine.check([Charge("new", day)])[0].reset_after == 86_400 - wall[0] % 86_400


@pytest.mark.parametrize("is_collected", [False, True])
def test_usage_is_forgotten_after_8_days_and_where_nobody_collects_after_an_hour(is_collected: bool) -> None:
    kept = USAGE_MINUTES if is_collected else UNCOLLECTED_MINUTES
    engine = MemoryEngine(lambda: kept * MINUTE_US)
    if is_collected:
        engine.drop_usage("0:a batch")
    for minute, batches in ((0, 0), (1, 1), (kept + 1, 1)):  # the last one forgets minute 0, which lag() has closed
        engine.check([Charge("key", DAY, usage="rule|")], now_us=minute * MINUTE_US)
        assert len(engine.take_usage(now_us=minute * MINUTE_US)) == batches


def test_what_is_sent_again_is_known_for_a_day_and_no_longer() -> None:
    engine, sent = MemoryEngine(), UsageCarry("an id", ((0, "rule|\nA", 1),))
    for at in (0, HELD_US - 1, HELD_US):
        engine.check([Charge("key", DAY)], now_us=at, counts=sent)
    [batch] = engine.take_usage(now_us=HELD_US)
    assert [count.allowed for count in engine.read_usage(batch)] == [2]
