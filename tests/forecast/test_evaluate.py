"""What one rule rejects of requests that are known as counts: compared with the engine."""

from __future__ import annotations

from random import Random

import pytest

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine
from django_ratelimiter.forecast.evaluate import Evaluator, Kind, Requests
from django_ratelimiter.testing.override import build_record

START_US = 1_795_168_800_000_000
ONE = (Kind(),)


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
