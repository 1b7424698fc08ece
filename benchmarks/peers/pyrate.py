"""pyrate-limiter on Redis: the token bucket that it recommends there, and its default algorithm, a log of requests.

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
    RedisBucket,
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
    client, rate = redis.Redis.from_url(url), _rate(seconds)

    def make(name: str) -> Any:
        return StateBucket([rate], algorithm=TokenBucket(), store=RedisStateStore(client, f"pyrate:{name}"))

    return _acquiring(make)


def log(url: str, seconds: int) -> Contestant:
    """A log of requests."""
    client, rate = redis.Redis.from_url(url), _rate(seconds)
    return _acquiring(lambda name: RedisBucket.init([rate], client, f"pyrate-log:{name}"))


def _rate(seconds: int) -> Any:
    return Rate(QUOTA, Duration.HOUR if seconds == HOUR else Duration.MINUTE)


def _acquiring(make: Callable[[str], Any]) -> Contestant:
    limiter = Limiter(ByName(make))
    return Contestant("", "peer", lambda key: limiter.try_acquire(key, blocking=False), address)
