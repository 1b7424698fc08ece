"""The engine by itself, with version and usage on: no Django, no matching of rules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine

from ..contest import CALLERS_EACH, QUOTA, Contestant, address

PLENTY = 100_000_000


def charges(caller: int, seconds: int, rules: int, *, algorithm: str = "token_bucket") -> list[Charge]:
    """What a request of this caller spends: from the quota that all contestants have, and from two that are plenty."""
    who = address(caller)
    return [
        Charge(f"caller:{who}", Limit(QUOTA, seconds, algorithm), usage="api|pro"),
        Charge(f"ip:{who}", Limit(PLENTY, 60), usage="address|pro"),
        Charge("global", Limit(PLENTY, 3_600, "fixed_window"), usage="everybody|"),
    ][:rules]


def _engine(url: str, name: str) -> RedisEngine:
    engine = RedisEngine(redis.Redis.from_url(url), f"bench-{name}")
    engine.publish(1)
    return engine


def _checking(engine: Any, seconds: int, rules: int, **options: Any) -> Contestant:
    def check(asked: list[Charge]) -> bool:
        return all(verdict.allowed for verdict in engine.check(asked, version=1))

    return Contestant("", "ours", check, lambda caller: charges(caller, seconds, rules, **options))


def one(url: str, seconds: int) -> Contestant:
    """One token bucket, as the floor is."""
    return _checking(_engine(url, "one"), seconds, 1)


def one_window(url: str, seconds: int) -> Contestant:
    """One sliding window, the default algorithm."""
    return _checking(_engine(url, "window"), seconds, 1, algorithm="sliding_window_counter")


def three(url: str, seconds: int) -> Contestant:
    """Three limits of three algorithms, decided together."""
    return _checking(_engine(url, "three"), seconds, 3)


def _remembering(engine: RedisEngine, denial_memory: float = 0.0) -> Any:
    """The engine as a process asks it: seldom."""
    ledger = import_module("django_ratelimiter.engine.ledger").Ledger(denial_memory)
    return import_module("django_ratelimiter.engine.approximate").Approximate(engine, ledger)


def denial_memory(url: str, seconds: int) -> Contestant:
    """A refusal is remembered for a second."""
    return _checking(_remembering(_engine(url, "denials"), 1.0), seconds, 1)


def approximate(url: str, seconds: int) -> Contestant:
    """Counted in the process, and synced to Redis once a second. All callers but the last have plenty of quota."""
    engine = _remembering(_engine(url, "approximate"))

    def check(asked: list[Charge]) -> bool:
        return all(verdict.allowed for verdict in engine.check(asked, version=1))

    def argument(caller: int) -> list[Charge]:
        [charge] = charges(caller, seconds, 1, algorithm="sliding_window_counter")
        if caller % CALLERS_EACH != CALLERS_EACH - 1:
            charge = charge._replace(limit=Limit(PLENTY, seconds))
        return [charge._replace(sync_interval=1.0)]

    return Contestant("", "ours", check, argument, in_a_row=PLENTY)


def cluster_one(url: str, seconds: int) -> Contestant:
    """One token bucket on a cluster."""
    return _checking(_on_cluster(url, "one"), seconds, 1)


def cluster_three(url: str, seconds: int) -> Contestant:
    """Three limits on a cluster, of one partition: one call, as all three are in one shard."""
    engine = _on_cluster(url, "three")

    def check(asked: list[Charge]) -> bool:
        return all(verdict.allowed for verdict in engine.check(asked, version=1))

    def argument(caller: int) -> list[Charge]:
        return [charge._replace(partition=address(caller)) for charge in charges(caller, seconds, 3)]

    return Contestant("", "ours", check, argument)


def _on_cluster(url: str, name: str) -> Any:
    client: Any = redis.RedisCluster.from_url(url)
    engine = RedisEngine(client, f"bench-{name}")
    engine.publish(1)
    return engine


def _awaiting(url: str, name: str, seconds: int, rules: int) -> Contestant:
    _engine(url, name)
    engine = AsyncRedisEngine(redis.asyncio.Redis.from_url(url), f"bench-{name}")

    async def check(asked: list[Charge]) -> bool:
        return all(verdict.allowed for verdict in await engine.check(asked, version=1))

    return Contestant("", "ours", check, lambda caller: charges(caller, seconds, rules), awaited=True)


def awaited_one(url: str, seconds: int) -> Contestant:
    """The same on an event loop."""
    return _awaiting(url, "awaited-one", seconds, 1)


def awaited_three(url: str, seconds: int) -> Contestant:
    """The same on an event loop."""
    return _awaiting(url, "awaited-three", seconds, 3)
