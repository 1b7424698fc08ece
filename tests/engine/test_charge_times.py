"""When units were charged: the same from both engines, and refunds at these times give them all back."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine
from django_ratelimiter.engine.base import Verdict
from django_ratelimiter.engine.redis import RedisEngine
from tests.engine.trio import HOUR

TIMED = [algorithm for algorithm in Algorithm if algorithm.traits.refunds_by_time]


@pytest.mark.parametrize("algorithm", TIMED)
@pytest.mark.parametrize("decodes", [False, True])
def test_both_engines_return_the_charges_that_still_count(redis_url: str, algorithm: Algorithm, decodes: bool) -> None:
    choice, now = Random(algorithm), HOUR
    charge = Charge("key", Limit(40, 60, algorithm))
    with redis.Redis.from_url(redis_url, decode_responses=decodes) as client:
        engines: list[Any] = [MemoryEngine(), RedisEngine(client, "times")]
        assert [engine.charge_times(charge, now) for engine in engines] == [[], []]
        for _ in range(40):
            now += choice.choice([0, 1, 999_999, 1_000_000, 7_000_000])
            asked = charge._replace(cost=choice.randrange(1, 4))
            [[verdict], _] = [engine.check([asked], now_us=now) for engine in engines]
            times, others = (engine.charge_times(charge, now) for engine in engines)
            assert times == others == sorted(times)
            assert sum(units for _, units in times) == 40 - verdict.remaining
        for engine in engines:
            engine.refund([Verdict(True, 0, 0, 0, 0, False, now, charge, units, at) for at, units in times])
            assert engine.charge_times(charge, now) == []
            assert engine.peek([charge], now_us=now)[0].remaining == 40
