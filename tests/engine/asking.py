"""Keys of a test's own, and times in microseconds, for the tests of single engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import redis

from django_ratelimiter.engine.redis import RedisEngine

_numbers = count()


def fresh() -> str:
    """A key that nobody else has used."""
    return f"key{next(_numbers)}"


@contextmanager
def engine_at(
    url: str, namespace: str = "rl", deadline: float | None = None, clock: str = "server", **options: Any
) -> Iterator[RedisEngine]:
    """An engine with a client of its own. options: of the client."""
    with redis.Redis.from_url(url, **options) as client:
        yield RedisEngine(client, namespace, deadline=deadline, clock=clock)


def microseconds(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1_000_000)
