"""The checks of the way to Redis, and what another alias of the same address can and cannot do to a decision."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core import checks as django_checks
from django.core.cache import caches
from django.test import override_settings
from django_redis.pool import ConnectionFactory
from redis.exceptions import ClusterDownError

from django_ratelimiter import checks
from django_ratelimiter.backend import get_engine
from django_ratelimiter.checks import project
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from example_project.redis_server import RedisServer, free_port
from tests.clusters import stopped, until
from tests.making import failing

from .test_checks import ids

TIMEOUTS = {"SOCKET_TIMEOUT": 0.5, "SOCKET_CONNECT_TIMEOUT": 0.5}

Servers = Callable[..., RedisServer]


def entry(address: Any = "redis://localhost/0", /, **options: Any) -> dict[str, Any]:
    """An entry of CACHES on django-redis."""
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": address, "OPTIONS": options}


def two(own: dict[str, Any], other: dict[str, Any], **limiter: Any) -> Any:
    """Settings with the limiter's alias and another."""
    return override_settings(
        CACHES={"default": other, "ratelimit": own}, RATELIMITER={"CACHE_ALIAS": "ratelimit", **limiter}
    )


def test_our_deadline_holds_whatever_another_alias_has_made_the_pool_with(
    redis_server: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """django-redis has one pool for each address; our own connections take no timeout and no retry from it."""
    monkeypatch.setattr(ConnectionFactory, "_pools", {})
    server, charge = redis_server(), Charge("key", Limit(5, 86_400, "token_bucket"))
    patient = {"SOCKET_TIMEOUT": 600, "SOCKET_CONNECT_TIMEOUT": 600}
    with two(entry(server.url, **TIMEOUTS), entry(server.url, **patient), DEADLINE_MS=200):
        caches["default"].set("a", 1)
        (pool,) = ConnectionFactory._pools.values()
        assert pool.connection_kwargs["socket_timeout"] == 600
        engine = get_engine()
        until(lambda: engine.peek([charge]), "it is asked")
        with stopped(server):
            for _ in range(5):
                began = time.monotonic()
                with pytest.raises(EngineUnavailable):
                    engine.check([charge])
                assert time.monotonic() - began < 600, "neither 600 seconds nor a second try of as many"
        until(lambda: engine.peek([charge]), "it is asked again")


@pytest.fixture
def server(redis_server: Servers) -> RedisServer:
    return redis_server()


def found(server: Any, address: str | None = None, **limiter: Any) -> list[Any]:
    """What the checks of servers find, as `check --deploy` runs them; the others are of no interest here."""
    with two(entry(address or server.url, **TIMEOUTS), entry("redis://localhost/9"), **limiter):
        messages = django_checks.run_checks(tags=[checks.TAG], include_deployment_checks=True)
    return [message for message in messages if message.id.endswith(("E008", "W015", "W018", "I001"))]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-random"])
def test_a_server_that_drops_keys_when_it_is_full(server: RedisServer, policy: str) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", policy)
        assert found(server) == [], "it has no bound"
        client.config_set("maxmemory", "100mb")
    messages = found(server)
    assert ids(messages) == ["W015"]
    assert f"(maxmemory-policy {policy})" in messages[0].msg


def test_a_server_that_rejects_when_it_is_full(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "noeviction")
    assert found(server) == []


def test_a_server_that_cannot_be_asked(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all", "-info")
    messages = found(server, server.url.replace("redis://", "redis://limiter:secret@"))
    assert ids(messages) == ["I001"]
    assert "info" in messages[0].msg
    assert ids(found(server, f"redis://localhost:{free_port()}")) == ["W018"]


def test_no_server_is_asked_unless_somebody_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.checks.project.evicting", lambda _engine: pytest.fail("asked"))
    assert django_checks.run_checks(tags=[checks.TAG]) == []


@pytest.mark.parametrize("limiter", [{"CACHE_ALIAS": None}, {"CACHE_ALIAS": "missing"}, {"SHARDS": -1}])
def test_nothing_is_said_without_a_server(limiter: dict[str, Any]) -> None:
    with two(entry(), entry(), **limiter):
        assert [*project.check_server()] == []


# Whether the server runs our scripts


@pytest.fixture
def strict() -> Any:
    """What stands for servers that are stricter than Redis."""
    pytest.importorskip("lupa", reason="lupa has no wheels for this Python")
    return importlib.import_module("tests.engine.strict")


def test_a_server_that_rejects_what_the_scripts_need(strict: Any) -> None:
    with strict.StrictServer(strict.Rules(time=False)) as server:
        (message,) = found(server)
        assert ids([message]) == ["E008"]
        assert "does not allow TIME in scripts. Set RATELIMITER['CLOCK'] = \"client\"." in message.msg
        assert server.space.keys == {}
        assert found(server, CLOCK="client") == []


def test_a_server_whose_memory_is_full(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "1")
        with two(entry(server.url, **TIMEOUTS), entry("redis://localhost/9")):
            (message,) = [each for each in project.check_server() if "W018" in each.id]
        client.config_set("maxmemory", "0")
    assert message.id == "django_ratelimiter.W018"
    assert "memory is full" in message.msg


def test_a_cluster_that_is_down_in_part_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(_engine: object) -> None:
        raise EngineUnavailable("the cluster is down") from ClusterDownError("CLUSTERDOWN The cluster is down")

    monkeypatch.setattr(project, "evicting", failing(EngineUnavailable("a node is gone")))
    monkeypatch.setattr(project, "dry_run", decide)
    messages = django_checks.run_checks(tags=[checks.TAG], include_deployment_checks=True)
    assert [message.id for message in messages if "W018" in message.id] == ["django_ratelimiter.W018"]


def test_a_server_that_runs_the_scripts_as_it_must(strict: Any) -> None:
    with strict.StrictServer(strict.Rules("5.4")) as server:
        assert found(server) == []
