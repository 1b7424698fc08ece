"""Fixtures of the engine's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis.asyncio

from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from example_project.redis_server import RedisServer
from tests.clusters import Cluster


class Blocking:
    """The methods of an engine for event loops, each run to its end."""

    def __init__(self, engine: AsyncRedisEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._loop.run_until_complete(getattr(self._engine, name)(*args, **kwargs))


@pytest.fixture
def of_either_kind(is_async: bool) -> Iterator[Callable[[RedisEngine], Any]]:
    """Return an engine as it is in a thread, and its twin on an event loop, to be asked alike."""
    with ExitStack() as stack:

        def of_kind(engine: RedisEngine) -> Any:
            if not is_async:
                return engine
            twin = engine.to_async()
            assert twin
            loop = asyncio.new_event_loop()
            stack.callback(loop.close)
            blocking = Blocking(twin, loop)
            stack.callback(blocking.aclose)
            return blocking

        yield of_kind


@pytest.fixture(scope="session")
def blocking(redis_url: str) -> Iterator[Blocking]:
    """An AsyncRedisEngine that can be asked as the others are."""
    loop = asyncio.new_event_loop()
    client = redis.asyncio.Redis.from_url(redis_url)
    engine = Blocking(AsyncRedisEngine(client, "async"), loop)
    yield engine
    engine.aclose()
    loop.run_until_complete(client.aclose())
    loop.close()


@pytest.fixture
def server(redis_server: Callable[..., RedisServer]) -> RedisServer:
    """A server of the test's own, for what would disturb others on a shared one."""
    return redis_server()


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[Cluster]:
    """Three masters with a replica each, of which no test kills one."""
    with Cluster(steady=True) as cluster:
        yield cluster
