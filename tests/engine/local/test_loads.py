"""Loads on four processes with a virtual clock: what passes beside exact rules, and what it costs in calls."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate

import pytest

from django_ratelimiter.engine import Charge, Limit

from .test_prefetch import ALGORITHMS
from .world import START_US, Clock, Counted, over

WINDOW, QUOTA = 10, 1_000

#: Keys, requests a second, seconds, quota, window; and the calls a request that counters made which were synced.
LOADS = {
    "a hot key far below its quota": (1, 2_000, 10, 1_000_000, 60, 0.020),
    "a hot key at ten times its quota": (1, 2_000, 20, 1_000, WINDOW, 0.020),
    "a key at 1.1 times its quota": (1, 110, 60, 1_000, WINDOW, 0.27),
    "callers far below": (20, 2_000, 10, 100_000, 60, 0.29),
    "callers at twice their quota": (20, 2_000, 20, 500, WINDOW, 0.29),
    "many callers far below": (2_000, 2_000, 10, 1_000, 60, 1.0),
}


def run(limit: Limit, keys: int, moments: list[float], interval: float | None) -> tuple[list[float], int]:
    """When requests were allowed, and how many calls were made. interval: `None` = exact."""
    clock, chance = Clock(), random.Random(1)
    engine = Counted(clock)
    ones = [over(engine, clock) for _ in range(4)]
    allowed = []
    charges = [Charge(f"rule:{key}", limit, partition=f"{key}", sync_interval=interval) for key in range(keys)]
    for clock.now in moments:
        if chance.choice(ones).check([chance.choice(charges)])[0].allowed:
            allowed.append(clock.now)
    return allowed, len(engine.calls)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    "algorithm", [pytest.param(each, marks=[pytest.mark.long] * (each != ALGORITHMS[1])) for each in ALGORITHMS]
)
def test_nearly_as_much_passes_as_by_exact_rules_and_never_more(algorithm: str, load: str) -> None:
    keys, rate, seconds, quota, window, calls_before = LOADS[load]
    chance = random.Random(1)
    moments = [*accumulate(chance.expovariate(rate) for _ in range(rate * seconds))]
    limit = Limit(min(quota, 10_000) if algorithm == "sliding_window_log" else quota, window, algorithm)
    (exact, _), (fetched, calls) = run(limit, keys, moments, None), run(limit, keys, moments, 0.1)
    assert 0.97 * len(exact) <= len(fetched) <= len(exact)
    assert calls <= 1.2 * calls_before * len(moments)


@pytest.mark.parametrize("interval", [0.1, 5.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bursts_after_slow_windows_keep_to_the_quota(algorithm: str, interval: float) -> None:
    """In a window by the clock, in any time of a window minus the interval, or what a bucket has got back."""
    limit, chance = Limit(QUOTA, WINDOW, algorithm), random.Random(1)
    moments = [WINDOW * 3 / QUOTA * number for number in range(QUOTA)]  # three windows at a third of the quota
    for _ in range(4):
        start = moments[-1] + chance.random() * WINDOW * 2
        moments += sorted(start + chance.random() * WINDOW / 3 for _ in range(2 * QUOTA))
    (exact, _), (fetched, _) = run(limit, 1, moments, None), run(limit, 1, moments, interval)
    begin = START_US % (WINDOW * 1_000_000) / 1_000_000
    if algorithm == "fixed_window":
        windows = [int((moment + begin) // WINDOW) for moment in fetched]
        assert max(map(windows.count, set(windows))) <= QUOTA
    elif algorithm.startswith("sliding"):
        assert most_within(fetched, WINDOW - interval) <= max(QUOTA, most_within(exact, WINDOW))
    else:
        assert all(count <= QUOTA + moment * QUOTA / WINDOW for count, moment in enumerate(fetched, 1))
    assert len(fetched) >= len(exact) / 2


def most_within(moments: list[float], span: float) -> int:
    """The most of these moments that lie in one stretch of this length."""
    return max(bisect_right(moments, begin + span) - number for number, begin in enumerate(moments))
