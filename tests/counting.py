"""An engine on Redis, and the usage that an engine holds, taken as the collector takes it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from django_ratelimiter.engine.base import UsageCount
from django_ratelimiter.engine.redis import RedisEngine


@contextmanager
def engine_at(
    url: str, namespace: str = "rl", deadline: float | None = None, clock: str = "server", **options: Any
) -> Iterator[RedisEngine]:
    """An engine with a client of its own. options: of the client."""
    with redis.Redis.from_url(url, **options) as client:
        yield RedisEngine(client, namespace, deadline=deadline, clock=clock)


def usage_of(engine: Any, now_us: int = 2**52) -> list[UsageCount]:
    """Take, read and drop all that waits by then, also what this process has not sent yet; sorted."""
    getattr(engine, "flush", lambda: None)()
    counts: list[UsageCount] = []
    for batch in engine.take_usage(now_us=now_us):
        counts += engine.read_usage(batch)
        engine.drop_usage(batch)
    return sorted(counts)


def sums_of(engine: Any, *names: str) -> dict[str, tuple[int, ...]]:
    """The sums of these counts, by rule and tier."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for count in usage_of(engine):
        sums[count.label.removesuffix("|")].update({name: getattr(count, name) for name in names})
    return {label: tuple(found[name] for name in names) for label, found in sums.items()}
