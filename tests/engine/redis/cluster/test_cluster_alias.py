"""A django-redis cache that stands for a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis.cluster import RedisCluster

from django_ratelimiter import redis_cluster
from django_ratelimiter.backend import get_async_engine, get_engine
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from example_project.redis_server import HOST, free_port
from tests.clusters import Cluster

CHARGE = Charge("key", Limit(5, 86_400, "token_bucket"))


def alias(location: str, factory: str = "django_ratelimiter.redis_cluster.ConnectionFactory", **options: Any) -> Any:
    """Settings whose alias stands for a cluster."""
    options = {"CONNECTION_FACTORY": factory, "SOCKET_TIMEOUT": 0.5, "SOCKET_CONNECT_TIMEOUT": 0.5, **options}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    # A deadline that a busy machine keeps even when nothing is known or connected yet.
    limiter = {"CACHE_ALIAS": "cluster", "SHARDS": 16, "DEADLINE_MS": 60_000}
    return override_settings(CACHES={"cluster": cache}, RATELIMITER=limiter)


@pytest.fixture(autouse=True)
def _no_client_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: dict[str, Any] = {}
    monkeypatch.setattr(redis_cluster.ConnectionFactory, "_clients", made)
    yield
    for client in made.values():
        client.close()


def test_an_alias_gives_the_engine_its_cluster(running_cluster: Cluster) -> None:
    """The first address need not answer: others are named as well."""
    running_cluster.flush()
    servers = [(HOST, server.port) for server in running_cluster.servers[:2]]
    with alias(f"redis://{HOST}:{free_port()}", STARTUP_NODES=servers):
        engine = get_engine()
        assert isinstance(engine, LocalFirstEngine)
        assert isinstance(engine.engine, RedisEngine)
        assert (engine.shards, engine.check([CHARGE])[0].remaining) == (16, 4)
        twin = get_async_engine()
        assert isinstance(twin.engine, AsyncRedisEngine)
        assert twin.shards == 16


def test_the_cache_itself_works_too_and_has_one_client(running_cluster: Cluster) -> None:
    with alias(running_cluster.urls[1]):
        cache = caches["cluster"]
        cache.set("a", 1)
        assert (cache.get("a"), cache.incr("a"), cache.delete("a"), cache.get("a")) == (1, 2, True, None)
        client = cache.client.get_client()
        assert isinstance(client, RedisCluster)
        assert caches.create_connection("cluster").client.get_client() is client
        cache.close()


def test_the_engine_is_made_while_the_cluster_is_out_of_reach() -> None:
    with alias(f"redis://{HOST}:{free_port()}"):
        engine = get_engine()
        with pytest.raises(EngineUnavailable):
            engine.check([CHARGE])


def test_a_client_that_connects_when_it_is_made_is_out_of_reach_as_well() -> None:
    with alias(f"redis://{HOST}:{free_port()}", f"{__name__}.eager"), pytest.raises(EngineUnavailable):
        get_engine()


def eager(options: Any) -> Any:
    """A factory as a project may have one."""

    class Factory:
        def connect(self, url: str) -> RedisCluster:
            return RedisCluster.from_url(url)

    return Factory()


@pytest.mark.parametrize(
    ("location", "nodes"), [("redis://a/1", []), ("unix:///tmp/a.sock", []), ("redis://a", ["b"]), ("redis://a", [1])]
)
def test_what_cannot_be_a_cluster_is_rejected(location: str, nodes: list[Any]) -> None:
    with alias(location, STARTUP_NODES=nodes), pytest.raises(ImproperlyConfigured, match="STARTUP_NODES of a cluster"):
        get_engine()
