"""The engine alone, with version and usage: no Django, no matching of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.local.store import LocalCounters
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine

from ..contest import CALLERS_EACH, QUOTA, Contestant, address

PLENTY = 100_000_000
_allowed = attrgetter("allowed")


class Rules:
    """Limits, made once as in a rule set: one that all contestants have, and two that are never reached."""

    def __init__(self, number: int, seconds: int, algorithm: str = "token_bucket", quota: int = QUOTA) -> None:
        self._number = number
        self._own = Limit(quota, seconds, algorithm)
        self._address, self._all = Limit(PLENTY, 60), Limit(PLENTY, 3_600, "fixed_window")

    def charges(self, caller: int) -> list[Charge]:
        """Return the charges of a request of this caller."""
        who = address(caller)
        charges = [Charge(f"caller:{who}", self._own, usage="api|pro")]
        if self._number == 3:
            charges.append(Charge(f"ip:{who}", self._address, usage="address|pro"))
            charges.append(Charge("global", self._all, usage="everybody|"))
        return charges


def _engine(url: str, name: str) -> RedisEngine:
    engine = RedisEngine(redis.Redis.from_url(url), f"bench-{name}")
    engine.publish(1)
    return engine


def _checking(engine: Any, argument: Callable[[int], list[Charge]]) -> Contestant:
    def check(asked: list[Charge]) -> bool:
        return all(map(_allowed, engine.check(asked, version=1)))

    return Contestant(check, argument)


def one(url: str, seconds: int) -> Contestant:
    """One token bucket, like the floor."""
    return _checking(_engine(url, "one"), Rules(1, seconds).charges)


def three(url: str, seconds: int) -> Contestant:
    """Three limits of three algorithms, decided together."""
    return _checking(_engine(url, "three"), Rules(3, seconds).charges)


def _remembering(engine: RedisEngine, denial_memory: float = 0.0) -> LocalFirstEngine:
    """Return the engine with units in hand and denial memory."""
    return LocalFirstEngine(engine, LocalCounters(denial_memory))


def denial_memory(url: str, seconds: int) -> Contestant:
    """A denial is remembered for a second."""
    return _checking(_remembering(_engine(url, "denials"), 1.0), Rules(1, seconds).charges)


def approximate(url: str, seconds: int) -> Contestant:
    """By units that are fetched once a second. All callers but the last have plenty of quota."""
    few, plenty = (Rules(1, seconds, "sliding_window_counter", quota) for quota in (QUOTA, PLENTY))

    def argument(caller: int) -> list[Charge]:
        rules = few if caller % CALLERS_EACH == CALLERS_EACH - 1 else plenty
        return [charge._replace(sync_interval=1.0) for charge in rules.charges(caller)]

    made = _checking(_remembering(_engine(url, "approximate")), argument)
    return replace(made, in_a_row=PLENTY)


def cluster_one(url: str, seconds: int) -> Contestant:
    """One token bucket on a cluster."""
    return _checking(_on_cluster(url, "one"), Rules(1, seconds).charges)


def cluster_three(url: str, seconds: int) -> Contestant:
    """Three limits on a cluster, of one partition: one call, as all three are in one shard."""
    rules = Rules(3, seconds)

    def argument(caller: int) -> list[Charge]:
        return [charge._replace(partition=address(caller)) for charge in rules.charges(caller)]

    return _checking(_on_cluster(url, "three"), argument)


def _on_cluster(url: str, name: str) -> Any:
    client: Any = redis.RedisCluster.from_url(url)
    engine = RedisEngine(client, f"bench-{name}")
    engine.publish(1)
    return engine


def awaited_three(url: str, seconds: int) -> Contestant:
    """`three` on an event loop."""
    _engine(url, "awaited-three")
    engine = AsyncRedisEngine(redis.asyncio.Redis.from_url(url), "bench-awaited-three")

    async def check(asked: list[Charge]) -> bool:
        return all(map(_allowed, await engine.check(asked, version=1)))

    return Contestant(check, Rules(3, seconds).charges, awaited=True)
