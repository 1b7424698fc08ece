"""What one rule rejects of a caller's requests: compared with an independent simulator, and with the engine."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine
from django_ratelimiter.forecast.evaluate import Evaluator, Kind, Requests
from django_ratelimiter.testing.override import build_record

from .simulator import rejected

START_US = 1_795_168_800_000_000
ONE = (Kind(),)


def requests_of(random: Random, number: int = 300, step_us: int = 1_000_000) -> Requests:
    """Crowds and breaks; some requests have the same time."""
    times, at = [], START_US + random.randrange(60) * step_us
    for _ in range(number):
        at += random.choice((0, 0, 1, 1, 2, 7, 40)) * step_us
        times.append(at)
    return Requests(times, ONE, durations=[random.choice((0, 400_000, 9_000_000, 70_000_000)) for _ in times])


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("window", [30, 60, 420])
def test_each_algorithm_rejects_what_a_simulator_rejects(algorithm: Algorithm, window: int) -> None:
    random = Random(f"{algorithm} {window}")
    burst = 7 if algorithm.traits.resets_at_end is False and "burst" in algorithm.traits.options else 0
    limit: dict[str, Any] = {"algorithm": algorithm, "quota": 4, "window_seconds": window}
    limit |= {"burst": burst} if burst else {}
    limit |= {"max_delay_ms": 20_000} if algorithm == "leaky_bucket" else {}
    evaluator = Evaluator(build_record({"slug": "one", "partition_by": ["ip"], "limits": [limit]}), 1)
    for step_us in (1_000_000, 333_333):
        requests = requests_of(random, step_us=step_us)
        sent = [
            (Fraction(at, 1_000_000), Fraction(at + duration, 1_000_000))
            for at, duration in zip(requests.times, requests.durations, strict=True)
        ]
        wanted = rejected(algorithm, 4, Fraction(window), sent, burst, 20)
        assert [*evaluator.rejected(requests)] == wanted
        assert 0 < len(wanted) < 300


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if not each.traits.holds_leases])
@pytest.mark.parametrize("cost", [1, 3])
def test_requests_at_one_time_are_charged_together_as_one_by_one(algorithm: Algorithm, cost: int) -> None:
    random = Random(5)
    limits = [Limit(20, 60, algorithm), Limit(90, 600, algorithm)]
    times = [START_US + minute * 60_000_000 for minute in range(90)]
    counts = [random.choice((1, 2, 9, 40)) for _ in times]
    rule = build_record({"slug": "one", "cost": cost, "limits": [
        {"algorithm": algorithm, "quota": each.quota, "window_seconds": each.window} for each in limits
    ]})  # fmt: skip
    found = Evaluator(rule, 1, None).rejected(Requests(times, ONE, counts))
    engine, wanted = MemoryEngine(), {}
    for place, (at, count) in enumerate(zip(times, counts, strict=True)):
        charges = [Charge(f"{limit.quota}", limit, cost) for limit in limits]
        refused = sum(not all(each.allowed for each in engine.check(charges, now_us=at)) for _ in range(count))
        wanted |= {place: refused} if refused else {}
    assert found == wanted
    assert 5 < len(wanted) < 90
