"""pyrate-limiter on Redis, with the token bucket that it recommends there.

A limiter finds each caller's bucket with a factory, which the project writes according to the documentation. The
process keeps a bucket for each caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from pyrate_limiter import (
    BucketFactory,
    Duration,
    Limiter,
    Rate,
    RateItem,
    RedisStateStore,
    StateBucket,
    TokenBucket,
)
from pyrate_limiter.clocks import WallClock

from ..contest import HOUR, QUOTA, Contestant, address


class ByName(BucketFactory):  # type: ignore[misc]  # it has no types here
    """A bucket for each name."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._clock = WallClock()
        self._make = make
        self._buckets: dict[str, Any] = {}

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        return RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: Any) -> Any:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._make(item.name)
        return bucket


def bucket(url: str, seconds: int) -> Contestant:
    """A token bucket."""
    client, rate = redis.Redis.from_url(url), Rate(QUOTA, Duration.HOUR if seconds == HOUR else Duration.MINUTE)

    def make(name: str) -> Any:
        return StateBucket([rate], algorithm=TokenBucket(), store=RedisStateStore(client, f"pyrate:{name}"))

    limiter = Limiter(ByName(make))
    return Contestant(lambda key: limiter.try_acquire(key, blocking=False), address)
