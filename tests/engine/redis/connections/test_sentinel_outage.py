"""No Sentinel can be reached: the log says which were asked and why each was of no use, in one short line."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from example_project.redis_server import HOST, free_port

DAY = Charge("key", Limit(5, 86_400, "token_bucket"))


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


def on_an_event_loop(addresses: list[tuple[str, int]]) -> list[str]:
    async def use() -> list[str]:
        sentinel = AsyncSentinel(addresses, sentinel_kwargs={"retry": AsyncRetry(NoBackoff(), 0)})
        client = sentinel.master_for("mymaster")
        engine, found = AsyncRedisEngine(client, deadline=20.0), []
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(EngineUnavailable) as caught:
                await engine.check([DAY])
            found.append(str(caught.value))
        await engine.aclose()
        for each in (client, *sentinel.sentinels):
            await each.aclose()
        return found

    return asyncio.run(use())


def assert_logged(texts: list[str], addresses: list[tuple[str, int]], caplog: pytest.LogCaptureFixture) -> None:
    for text in (*texts, *[record.getMessage() for record in caplog.records]):
        assert_short(text, addresses)


def test_it_is_told_in_a_line(
    addresses: list[tuple[str, int]], of_either_kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = Sentinel(addresses, sentinel_kwargs={"retry": Retry(NoBackoff(), 0)}).master_for("mymaster")
    threads, found = RedisEngine(client, deadline=20.0), []
    engine = of_either_kind(threads)
    for ask in [lambda: engine.check([DAY])] * (MAX_FAILURES + 1) + [threads.take_usage]:
        with pytest.raises(EngineUnavailable) as caught:
            ask()
        found.append(str(caught.value))
    assert_logged(found, addresses, caplog)
    threads._transport.close()
    client.close()


def test_so_is_a_client_for_event_loops(addresses: list[tuple[str, int]], caplog: pytest.LogCaptureFixture) -> None:
    assert_logged(on_an_event_loop(addresses), addresses, caplog)
