"""Connections that take longer to make than a decision may wait are made all the same, for later decisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from asgiref.sync import async_to_sync

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from django_ratelimiter.engine.redis.connections.async_transport import CALLS_IN_THREADS
from example_project.redis_server import RedisServer, free_port
from tests.clusters import WAIT_SECONDS, until
from tests.counting import engine_at
from tests.engine.redis.test_async_engine import on_a_loop
from tests.engine.redis.test_deadline import admits
from tests.engine.slow import SlowProxy

DAY = Charge("key", Limit(1_000, 86_400, "token_bucket", burst=1_000))
#: A round trip, and a deadline that it fits; a handshake of several does not.
ROUND_TRIP, DEADLINE = 0.5, 0.95
#: Longer than any hiccup of a busy machine.
LONG = 600.0


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[SlowProxy]:
    with SlowProxy(server.port, ROUND_TRIP / 2) as proxy:
        yield proxy


def spent(server: RedisServer) -> int:
    with redis.Redis.from_url(server.url) as client:
        return 1_000 - RedisEngine(client, "test").peek([DAY])[0].remaining


def test_in_threads(proxy: SlowProxy, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", None)  # it searches folders, and no deadline is that long
    with engine_at(proxy.url, "test", deadline=DEADLINE) as engine:
        assert not admits(engine)
        assert spent(server) == 0, "nothing was sent for who did not wait for it"
        until(lambda: admits(engine), "a connection is made all the same")
        assert spent(server) > 0


def test_on_an_event_loop(proxy: SlowProxy, server: RedisServer) -> None:
    async def use(engine: AsyncRedisEngine) -> None:
        assert not await aadmits(engine)
        assert spent(server) == 0
        async with asyncio.timeout(WAIT_SECONDS):
            while not await aadmits(engine):
                await asyncio.sleep(0.005)
        assert spent(server) > 0

    on_a_loop(proxy.url, use, deadline=DEADLINE)


def test_a_call_that_gets_a_connection_too_late_leaves_it_to_others(proxy: SlowProxy, server: RedisServer) -> None:
    """It would be charged, and the connection lost, for a reply that nobody waits for."""
    with engine_at(proxy.url, "test", deadline=DEADLINE) as engine:
        assert not admits(engine)
        (pool,) = engine.server_of(0).pools
        until(lambda: pool.idle, "a connection is made")
        (connection,) = pool.idle
        with pytest.raises(redis.TimeoutError):
            pool.acquire(time.monotonic() + ROUND_TRIP * 0.9)
        assert pool.try_acquire() is connection
        assert spent(server) == 0


def test_event_loops_that_end_with_each_request_leave_probing_to_a_thread(server: RedisServer) -> None:
    """As under WSGI with asynchronous views: no task outlives its request."""
    engine = for_loops(server)
    server.kill()
    assert not any(async_to_sync(aadmits)(engine) for _ in range(10))
    server.start()
    until(lambda: async_to_sync(aadmits)(engine), "it is found")
    assert async_to_sync(aadmits)(engine)


def test_an_event_loop_that_stands_still_keeps_no_other_from_probing(server: RedisServer) -> None:
    """As in a thread that runs one now and then, and does not close it."""
    engine = for_loops(server)
    still = asyncio.new_event_loop()
    server.kill()
    assert not any(still.run_until_complete(aadmits(engine)) for _ in range(CALLS_IN_THREADS + 10))
    server.start()
    until(lambda: asyncio.run(aadmits(engine)), "it is found")
    still.run_until_complete(still.shutdown_asyncgens())
    still.close()


def test_who_is_rejected_a_connection_does_not_wait() -> None:
    """All that wait for the same one are told at once."""
    with redis.Redis.from_url(f"redis://127.0.0.1:{free_port()}/0") as client:
        engine, began = RedisEngine(client, deadline=LONG), time.monotonic()
        for _ in range(10):
            assert not admits(engine)
        assert time.monotonic() - began < LONG

    async def main(engine: AsyncRedisEngine) -> list[Any]:
        return await asyncio.gather(*(aadmits(engine) for _ in range(200)))

    engine = AsyncRedisEngine(redis.asyncio.Redis.from_url(f"redis://127.0.0.1:{free_port()}/0"), deadline=LONG)
    began = time.monotonic()
    assert not any(asyncio.run(main(engine)))
    assert time.monotonic() - began < LONG


def for_loops(server: RedisServer) -> AsyncRedisEngine:
    engine = RedisEngine(redis.Redis.from_url(server.url), "test", deadline=LONG).to_async()
    assert engine is not None
    return engine


async def aadmits(engine: AsyncRedisEngine) -> bool:
    try:
        return bool((await engine.check([DAY]))[0].allowed)
    except EngineUnavailable:
        return False
