"""After an outage no process decides by rules from before it, though nobody could tell Redis of newer ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client, RequestFactory

from django_ratelimiter import backend, limiter
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import StaleRules, Version
from django_ratelimiter.engine.redis.connections import async_transport, handshake
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import versions
from example_project.redis_server import RedisServer
from tests.engine.slow import SlowProxy

from .rows import held, make_rule

PAUSES = versions.PUBLISH_PAUSES  # tests do without

pytestmark = pytest.mark.django_db(transaction=True)


def test_rules_saved_during_an_outage_hold_when_redis_is_back(
    redis_server: Callable[..., RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server()
    at = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    settings.CACHES = {"default": at, "ratelimit": at}
    limit = make_rule(quota=50, path="/items/1/", path_kind="exact").limits.get()
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

    breaker = engine.server_of(0).breaker  # type: ignore[attr-defined]
    while not breaker.is_open:
        breaker.fail(OSError("gone"))
    assert quota() is None, "by the failure policy"
    breaker.close()
    assert quota() == 60
    assert held() == cache.current_rules().version


@pytest.mark.parametrize("tells_its_run", [True, False], ids=["", "without INFO"])
def test_a_version_that_a_moved_address_lacks_is_published_there(
    redis_server: Callable[..., RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch, tells_its_run: bool
) -> None:
    """Event loops ask the new server, while an idle connection of threads still leads to the former one."""
    former, new = redis_server(), redis_server()
    monkeypatch.setattr(async_transport, "CALLS_IN_THREADS", 0)
    monkeypatch.setattr("django_redis.pool.ConnectionFactory._pools", {})
    if not tells_its_run:
        monkeypatch.setattr(handshake, "_run_of", lambda *replies: None)
    with SlowProxy(former.port, 0.0) as address:
        at = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": address.url}
        settings.CACHES = {"default": at, "ratelimit": at}
        limit = make_rule(quota=50).limits.get()
        assert not adecide().degraded
        address.server_port = new.port
        assert not adecide().degraded
        limit.quota = 60
        limit.save()
        (result,) = adecide().results
        assert result.limit.quota == 60


def test_a_version_that_is_never_there_is_not_called_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule()
    engine: Any = backend.get_engine()

    def missing(*_arguments: Any, **_options: Any) -> None:
        raise StaleRules(None)

    monkeypatch.setattr(engine, "check", missing)
    assert limiter.check(RequestFactory().get("/")).degraded
    assert "Redis held no version of the rules" in caplog.text
    assert "replaced" not in caplog.text


def test_a_database_that_returns_older_rules_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a cache of queries in this process does, when another process saves."""
    limit = make_rule(failure_policy="closed").limits.get()
    older = cache.current_rules()
    limit.quota += 1
    limit.save()
    cache._state.rules, cache._state.outdated = older, False
    monkeypatch.setattr(cache.storage, "load", lambda: older)
    versions_before = versions.storage.committed_version()
    for _ in range(2):
        assert limiter.check(RequestFactory().get("/")).degraded
    assert "The database returns rules of version" in caplog.text
    assert "CACHALOT_UNCACHABLE_APPS" in caplog.text
    assert versions.storage.committed_version() == versions_before


def adecide() -> Decision:
    return async_to_sync(limiter.acheck)(RequestFactory().get("/"))


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
