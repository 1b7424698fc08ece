"""What limits would have rejected, from counts per minute: compared with the engine."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine
from django_ratelimiter.forecast.samples.cells import CellThresholds, Width, cells_of, thresholds_of

START_US = 1_795_168_800_000_000  # on the hour
COUNTED = [algorithm for algorithm in Algorithm if not algorithm.traits.holds_leases]


def rejected(limit: Limit, times_us: list[int], cost: int) -> int:
    engine = MemoryEngine()
    return sum(not engine.check([Charge("k", limit, cost)], now_us=at)[0].allowed for at in times_us)


def beyond(limit: Limit, times_us: list[int], cost: int) -> list[int]:
    """Requests beyond each of the thresholds."""
    found = cells_of(limit, cost)
    assert found is not None
    width, thresholds = found
    cells = Counter(at // (width.seconds * 1_000_000) for at in times_us)
    return [sum(max(count - threshold, 0) for count in cells.values()) for threshold in thresholds]


@pytest.mark.parametrize("algorithm", COUNTED)
def test_the_engine_lies_within_the_range(algorithm: Algorithm) -> None:
    """However requests come: spread, in bursts, over the ends of minutes."""
    chance = random.Random(1)
    for _ in range(60):
        window = chance.choice((1, 7, 10, 60, 90, 120, 600))
        burst = chance.choice((None, 2, 40)) if "burst" in algorithm.traits.options else None
        limit = Limit(chance.randint(2, 30), window, algorithm, burst=burst)
        cost = chance.choice((1, 1, 2))
        gap = chance.choice((1_000, 900_000, 20_000_000))
        at, times = START_US + chance.randrange(3_600_000_000), list[int]()
        for _ in range(150):
            at += int(chance.expovariate(1 / gap)) + (chance.random() < 0.02) * 45_000_000
            times.append(at)
        low, _even, high = beyond(limit, times, cost)
        assert low <= rejected(limit, times, cost) <= high, (limit, cost, gap)


def test_a_fixed_window_of_a_minute_is_known_exactly() -> None:
    assert cells_of(Limit(5, 60, "fixed_window")) == (Width(60), CellThresholds(5, 5, 5))
    assert cells_of(Limit(6, 3_600, "fixed_window"), cost=2) == (Width(3_600), CellThresholds(3, 3, 3))
    day = cells_of(Limit(9, None, "fixed_window", calendar="day", timezone="Europe/Berlin"))
    assert day == (Width(86_400, "day", "Europe/Berlin"), CellThresholds(9, 9, 9))


def test_below_a_minute_there_is_a_range() -> None:
    assert cells_of(Limit(5, 10, "fixed_window")) == (Width(60), CellThresholds(30, 30, 5))
    assert cells_of(Limit(5, 1, "sliding_window_log")) == (Width(60), CellThresholds(300, 300, 2))
    assert cells_of(Limit(1, 1, "token_bucket", burst=20)) == (Width(60), CellThresholds(80, 60, 10))


def test_requests_in_progress_are_unknown() -> None:
    assert cells_of(Limit(5, 60, "concurrency")) is None
    assert thresholds_of([Limit(5, 60, "concurrency"), Limit(3, 60, "fixed_window"), Limit(9, 60, "fixed_window")]) == {
        Width(60): CellThresholds(3, 3, 3)
    }


def test_the_days_of_a_calendar() -> None:
    """The day on which summer time ends has 25 hours."""
    saturday = 1_792_792_800  # 2026-10-24 00:00 in Berlin
    starts = Width(86_400, "day", "Europe/Berlin").starts(saturday + 5, saturday + 3 * 86_400)
    assert starts == [saturday, saturday + 86_400, saturday + 86_400 + 90_000]
