"""throttled-py, with its store for Redis and its default algorithm."""

from __future__ import annotations

from throttled import RateLimiterType, Throttled
from throttled.store import RedisStore

from ..contest import HOUR, QUOTA, Contestant, address


def bucket(url: str, seconds: int) -> Contestant:
    """A token bucket."""
    quota = f"{QUOTA}/{'h' if seconds == HOUR else 'm'}"
    throttle = Throttled(using=RateLimiterType.TOKEN_BUCKET.value, quota=quota, store=RedisStore(server=url))
    return Contestant(lambda key: not throttle.limit(key).limited, address)
