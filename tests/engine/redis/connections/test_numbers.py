"""A process opens no connection for an event loop that ends soon, and never more than the alias allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import monotonic
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.test import override_settings

from django_ratelimiter.backend import get_async_engine, get_engine
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES
from django_ratelimiter.engine.redis.connections import async_transport
from example_project.redis_server import RedisServer
from tests.clusters import until
from tests.counting import engine_at

DAY = Charge("key", Limit(100_000, 86_400, "token_bucket", burst=100_000))
MAX = 3


def opened(server: RedisServer) -> int:
    with redis.Redis.from_url(server.url) as client:
        return int(client.info("stats")["total_connections_received"])


def open_now(server: RedisServer) -> int:
    with redis.Redis.from_url(server.url) as client:
        return sum(each["cmd"] == "evalsha" for each in client.client_list())


def alias(server: RedisServer, **changed: Any) -> Any:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url} | changed
    return override_settings(CACHES={"own": entry}, RATELIMITER={"CACHE_ALIAS": "own", "DEADLINE_MS": 20_000})


async def check() -> bool:
    return bool((await get_async_engine().check([DAY]))[0].allowed)


def in_a_loop_of_its_own() -> bool:
    return asyncio.run(check())


def test_event_loops_that_live_for_one_request_open_none(server: RedisServer) -> None:
    """As Django's asynchronous views have one under WSGI, and `asyncio.run` makes one in a task."""
    with alias(server):
        get_engine()
        assert in_a_loop_of_its_own()
        before = opened(server)
        for _ in range(30):
            assert in_a_loop_of_its_own()
            assert async_to_sync(check)()
        assert opened(server) == before + 1, "ours"


def test_an_event_loop_that_goes_on_has_its_own(server: RedisServer) -> None:
    async def use() -> None:
        for _ in range(async_transport.CALLS_IN_THREADS + 5):
            assert await check()
        assert open_now(server) == 2, "of threads, and of this loop"
        await get_async_engine().aclose()

    with alias(server):
        get_engine()
        asyncio.run(use())


@pytest.mark.parametrize(
    "changed",
    [
        lambda url: {"LOCATION": f"{url}?max_connections={MAX}"},
        lambda url: {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": MAX}}},
        lambda url: {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "OPTIONS": {"max_connections": MAX},
        },
    ],
    ids=["URL", "django-redis", "Django"],
)
def test_the_maximum_of_the_alias_holds(
    server: RedisServer, changed: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis.pool.ConnectionFactory._pools", {})
    monkeypatch.setattr(async_transport, "CALLS_IN_THREADS", 0)
    together = Barrier(8)

    def in_threads(_: int) -> None:
        together.wait()
        for _ in range(50):
            assert get_engine().check([DAY])[0].allowed

    async def on_a_loop() -> None:
        assert all(await asyncio.gather(*(check() for _ in range(200))))
        assert MAX < open_now(server) <= 2 * MAX, "threads have as many"
        await get_async_engine().aclose()

    with alias(server, **changed(server.url)):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(in_threads, range(8)))
        assert 1 <= open_now(server) <= MAX
        asyncio.run(on_a_loop())


def test_a_call_that_finds_all_in_use_is_no_failure_of_the_server(server: RedisServer) -> None:
    with engine_at(server.url, max_connections=1, deadline=0.2) as engine:
        (pool,) = engine.server_of(0).pools
        connection = pool.acquire(monotonic() + 120)
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(EngineUnavailable, match=r"All 1 connections \(max_connections\) were in use"):
                engine.check([DAY])
        assert not engine.server_of(0).breaker.is_open
        connection.close()
        pool.release(pool.acquire(monotonic() + 120))
        until(lambda: engine.check([DAY])[0].allowed, "another may be opened")
