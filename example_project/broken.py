"""Ways to break the example: the demo must notice each of these (`DEMO_BREAK=double make demo ARGS=--once`).

A function here returns an engine for RATELIMITER["ENGINE"]. A fourth way, DEMO_BREAK=nolimiter, is a setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django_redis import get_redis_connection

from django_ratelimiter.conf import settings
from django_ratelimiter.engine.base import Charge, Verdict, Version
from django_ratelimiter.engine.redis import RedisEngine


class _Engine(RedisEngine):
    """The engine of the working example."""

    def __init__(self) -> None:
        super().__init__(get_redis_connection("default"), settings.NAMESPACE)


class _Double(_Engine):
    def check(self, charges: Sequence[Charge], **options: Any) -> list[Verdict]:
        verdicts = super().check(charges, **options)
        super().check(charges, version=options.get("version"))
        return verdicts


class _Stale(_Engine):
    def check(
        self, charges: Sequence[Charge], *, version: int | Version | None = None, **options: Any
    ) -> list[Verdict]:
        return super().check(charges, **options)


class _Uncounted(_Engine):
    def check(self, charges: Iterable[Charge], **options: Any) -> list[Verdict]:
        return super().check([charge._replace(usage=None) for charge in charges], **options)


def double() -> RedisEngine:
    """Charges every request twice."""
    return _Double()


def stale() -> RedisEngine:
    """Never reports changed rules, so that a process keeps its old ones."""
    return _Stale()


def uncounted() -> RedisEngine:
    """Counts no usage."""
    return _Uncounted()
