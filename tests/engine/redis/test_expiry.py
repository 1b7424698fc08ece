"""How long Redis remembers: until the full quota is back, also after a limit was changed."""

from __future__ import annotations

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.redis import RedisEngine


@pytest.fixture
def engine(redis_client: redis.Redis) -> RedisEngine:
    return RedisEngine(redis_client, "expiry")


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra", "leaky_bucket"])
def test_a_lowered_quota_is_not_forgotten_before_the_time_that_was_promised(
    engine: RedisEngine, redis_client: redis.Redis, algorithm: str
) -> None:
    charge = Charge("ann", Limit(1_000, 3_600, algorithm))
    engine.check([charge])
    (name,) = redis_client.keys("*")
    assert 3_600 < redis_client.pttl(name) < 14_000, "3.6 s until the token is back, and ten of grace"
    lowered, state = charge._replace(limit=Limit(1, 3_600, algorithm)), redis_client.get(name)
    rejected = engine.check([lowered])[0]
    assert not rejected.allowed
    assert redis_client.pttl(name) > 1_000 * rejected.retry_after
    assert redis_client.get(name) == state, "it only lives longer"


def test_a_key_without_an_expiry_gets_one_when_it_rejects(engine: RedisEngine, redis_client: redis.Redis) -> None:
    charge = Charge("ann", Limit(1, 3_600, "fixed_window", anchor="first_request"))
    engine.check([charge])
    (name,) = redis_client.keys("*")
    redis_client.persist(name)
    engine.peek([charge])
    assert redis_client.pttl(name) == -1, "a peek changes nothing"
    engine.check([charge])
    assert 3_600_000 < redis_client.pttl(name) <= 3_610_000
