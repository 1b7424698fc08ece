"""The engine behind Sentinel: as redis-py and as django-redis are told of it, in threads and on event loops."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from django_ratelimiter.backend import get_async_engine, get_engine
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from example_project.redis_server import HOST, free_port
from tests.clusters import WAIT_SECONDS, ServerWith, Watched, until

CHARGE = Charge("key", Limit(5, 86_400, "token_bucket"))


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched(steady=True) as watched:
        yield watched


@pytest.fixture
def master(watched: Watched) -> ServerWith:
    master: ServerWith = until(lambda: watched.settled, "the Sentinels agree on a master")
    watched.flush()
    return master


async def ask_both(engine: Any, server: ServerWith) -> list[int]:
    """What remains after each of two calls, between which the connections and the script were lost."""
    first = await engine.check([CHARGE])
    server.ask("CLIENT", "KILL", "TYPE", "normal")
    await until_peeked(engine)  # until the event loop hears of the end, it may call over a connection that is lost
    server.ask("SCRIPT", "FLUSH")
    second = await engine.check([CHARGE])
    await engine.aclose()
    return [first[0].remaining, second[0].remaining]


def test_the_master_is_asked_in_threads_and_on_several_event_loops(watched: Watched, master: ServerWith) -> None:
    client = Sentinel(watched.addresses, socket_timeout=60).master_for(watched.name)
    engine = RedisEngine(client)
    assert engine.check([CHARGE])[0].remaining == 4
    twin = engine.to_async()
    assert twin
    for left in ([3, 2], [1, 0]):
        assert asyncio.run(ask_both(twin, master)) == left
    client.close()


def test_a_client_for_event_loops_will_do(watched: Watched, master: ServerWith) -> None:
    async def ask() -> list[int]:
        sentinel = AsyncSentinel(watched.addresses, socket_timeout=60)
        client = sentinel.master_for(watched.name)
        try:
            return await ask_both(AsyncRedisEngine(client), master)
        finally:
            await client.aclose()
            for each in sentinel.sentinels:
                await each.aclose()

    assert asyncio.run(ask()) == [4, 3]


@pytest.mark.parametrize("query", ["", "?is_master=0"])
@pytest.mark.parametrize("client", ["SentinelClient", "DefaultClient"])
def test_an_alias_of_django_redis_leads_to_the_master(
    watched: Watched, master: ServerWith, client: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or nowhere: replicas do not count."""
    monkeypatch.setattr("django_redis.pool.ConnectionFactory._pools", {})
    options = {
        "CLIENT_CLASS": f"django_redis.client.{client}",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": watched.addresses,
        "SOCKET_TIMEOUT": 30,
        "SOCKET_CONNECT_TIMEOUT": 30,
    }
    location = f"redis://{watched.name}/0{query}"
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    limiter = {"CACHE_ALIAS": "watched", "DEADLINE_MS": 60_000}
    with override_settings(CACHES={"watched": cache}, RATELIMITER=limiter):
        if client == "DefaultClient" and query:
            with pytest.raises(ImproperlyConfigured, match="asks the replicas of Sentinel"):
                get_engine()
            return
        engine = get_engine()
        assert engine.check([CHARGE])[0].remaining == 4
        assert asyncio.run(asked_on_a_loop())[0].remaining == 3


async def until_peeked(engine: Any) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(EngineUnavailable):
                return await engine.peek([CHARGE])
            await asyncio.sleep(0.02)


async def asked_on_a_loop() -> Any:
    return await get_async_engine().check([CHARGE])


@pytest.fixture
def addresses() -> list[tuple[str, int]]:
    return [(HOST, free_port()) for _ in range(3)]


def assert_short(text: str, addresses: list[tuple[str, int]]) -> None:
    """Names each Sentinel once, with what is wrong with it, and nothing else."""
    assert "No master found for 'mymaster'" in text
    for host, port in addresses:
        assert len(re.findall(rf"Sentinel {host}:{port}: [^;]*ConnectionError", text)) == 1
    assert "<" not in text
    assert len(text) < 600


def assert_logged(texts: list[str], addresses: list[tuple[str, int]], caplog: pytest.LogCaptureFixture) -> None:
    for text in (*texts, *[record.getMessage() for record in caplog.records]):
        assert_short(text, addresses)


def test_it_is_told_in_a_line(
    addresses: list[tuple[str, int]], of_either_kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = Sentinel(addresses, sentinel_kwargs={"retry": Retry(NoBackoff(), 0)}).master_for("mymaster")
    threads, found = RedisEngine(client, deadline=20.0), []
    engine = of_either_kind(threads)
    for ask in [lambda: engine.check([CHARGE])] * (MAX_FAILURES + 1) + [threads.take_usage]:
        with pytest.raises(EngineUnavailable) as caught:
            ask()
        found.append(str(caught.value))
    assert_logged(found, addresses, caplog)
    threads._transport.close()
    client.close()
