"""After an outage no process decides by rules from before it, though nobody could tell Redis of newer ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_ratelimiter import backend
from django_ratelimiter.engine import StaleRules, Version
from django_ratelimiter.models import Rule, RuleLimit
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import versions
from example_project.redis_server import RedisServer
from tests.engine.slow import SlowProxy

PAUSES = versions.PUBLISH_PAUSES  # tests do without

pytestmark = pytest.mark.django_db(transaction=True)


def test_rules_saved_during_an_outage_hold_when_redis_is_back(
    redis_server: Callable[..., RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server()
    at = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    settings.CACHES = {"default": at, "ratelimit": at}
    rule = Rule.objects.create(slug="rule", name="rule", path="/items/1/", path_kind="exact", mode="enforce")
    limit = RuleLimit.objects.create(rule=rule, algorithm="fixed_window", quota=50, window_seconds=86_400)
    assert quota() == 50
    engine, before = backend.get_engine(), cache._state
    publish = engine.publish

    # Another process saves, and Redis does not hear of it.
    monkeypatch.setattr(cache, "_state", cache._State())
    monkeypatch.setattr(engine, "publish", lambda version: None)
    limit.quota = 60
    limit.save()
    monkeypatch.setattr(cache, "_state", before)
    monkeypatch.setattr(engine, "publish", publish)
    before.outdated = False

    breaker = engine._transport._pool.breaker  # type: ignore[attr-defined]
    while not breaker.is_open:
        breaker.fail(OSError("gone"))
    assert quota() is None, "by the failure policy"
    breaker.close()
    assert quota() == 60
    with pytest.raises(StaleRules) as told:
        engine.check([], version=0)
    assert told.value.number == cache.current_rules().version.number


def quota() -> int | None:
    """What the response says, by whose rules it was decided."""
    limit = Client().get("/items/1/").headers.get("X-RateLimit-Limit")
    return limit and int(limit)


def test_a_process_that_has_just_begun_publishes_over_a_slow_network(
    redis_server: Callable[..., RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a management command does: its first connection takes longer to make than a decision may wait."""
    monkeypatch.setattr(versions, "PUBLISH_PAUSES", PAUSES)
    server = redis_server()
    with SlowProxy(server.port, 0.15) as proxy:
        at = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": proxy.url.replace("/0", "/1")}
        settings.CACHES = {"default": at, "ratelimit": at}
        settings.RATELIMITER = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 1_000}  # to connect takes 1.2 s
        assert versions.publish(Version(7))
