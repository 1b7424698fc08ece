"""Rules for the tests of entry points, made in the database, and a clock that only sleeping moves."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_ratelimiter import backend
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.engine.fallback import FallbackEngine
from django_ratelimiter.limiter import io, slots
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.rules import cache

MakeRule = Callable[..., Rule]


@pytest.fixture
def make_rule(db: None) -> MakeRule:
    """Make a rule of one limit: `make_rule("slug", quota=2, tier=None, algorithm=…, **fields of the rule)`.

    The window is a day, so that no edge of it falls into a test. limit: further fields of the limit.
    """

    def make(
        slug: str,
        quota: int = 2,
        tier: Tier | None = None,
        algorithm: str = "token_bucket",
        limit: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Rule:
        options = {"window_seconds": 86_400, **(limit or {})}
        with cache.editing():
            rule = Rule.objects.create(slug=slug, name=slug, **{"mode": "enforce", **fields})
            RuleLimit.objects.create(rule=rule, tier=tier, algorithm=algorithm, quota=quota, **options)
        return rule

    return make


@pytest.fixture
def people(db: None) -> None:
    """Two users."""
    for name in ("ann", "bob"):
        User.objects.create(username=name)


class Clock:
    """Time in microseconds, which passes only while somebody sleeps. slept: for how long each time, in seconds."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> int:
        return self.now_us

    def seconds(self) -> float:
        """The same in seconds since the clock was made."""
        return (self.now_us - 1_700_000_000_000_000) / 1_000_000

    def sleep(self, seconds: float) -> None:
        """Let time pass, and `meanwhile` happen."""
        self.slept.append(seconds)
        self.now_us += ceil(round(seconds * 1_000_000, 3))
        self.meanwhile()

    async def asleep(self, seconds: float) -> None:
        """The same for coroutines."""
        self.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the engine, which counts in memory, and of whoever waits."""
    clock = Clock()
    monkeypatch.setattr(backend, "_engine", MemoryEngine(clock))
    monkeypatch.setattr("django_ratelimiter.limiter.fallback._local", FallbackEngine(clock))
    monkeypatch.setattr(io, "sleep", clock.sleep)
    monkeypatch.setattr(io, "asleep", clock.asleep)
    monkeypatch.setattr(slots, "_clock", clock.seconds)
    return clock


class Remote:
    """An engine as if it had to wait for something, so that event loops ask it in threads."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
