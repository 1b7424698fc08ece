"""A node that has left its cluster for good: nothing of it stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import pytest

from django_ratelimiter.engine import EngineUnavailable, breaker
from django_ratelimiter.engine.breaker import MAX_FAILURES, on_state_change, open_breakers
from django_ratelimiter.engine.redis.cluster.nodes import AsyncClusterTransport, ClusterTransport
from django_ratelimiter.engine.redis.connections import async_transport, pool
from django_ratelimiter.engine.redis.connections.clients import Address, ClientFactory
from django_ratelimiter.engine.redis.connections.connection import PING
from django_ratelimiter.engine.redis.connections.handshake import Handshake
from django_ratelimiter.engine.redis.protocol import CallEncoder
from example_project.redis_server import HOST, free_port
from tests.clusters import until


class OneNode:
    """A cluster of one node that nobody answers for; it may be another one from some time on."""

    is_known = True

    def __init__(self) -> None:
        self.replace()

    def replace(self) -> None:
        self.at = HOST, free_port()

    @property
    def addresses_in_use(self) -> set[Address]:
        return {self.at}

    def known_address(self, shard: int) -> Address:
        return self.at

    def address(self, shard: int, wait: float) -> Address:
        return self.at

    def redirection(self, *_arguments: Any) -> None:
        return None


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many servers of this test were known to be away, whenever that has changed."""
    monkeypatch.setattr(breaker, "_breakers", WeakValueDictionary())
    monkeypatch.setattr(breaker, "_state_listeners", [])
    numbers: list[int] = []
    on_state_change(lambda: numbers.append(open_breakers()))
    return numbers


def lose(ask: Callable[[], Any], cluster: Any) -> None:
    """Ask a node until it is not asked any more, then another one that has taken over."""
    for _ in range(MAX_FAILURES):
        with pytest.raises(EngineUnavailable):
            ask()
    cluster.replace()
    with pytest.raises(EngineUnavailable):
        ask()


def test_no_thread_goes_on_probing_it(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it counted among those that are away."""
    monkeypatch.setattr(pool, "Thread", lambda **options: threading.Thread(**options | {"name": "of this test"}))
    cluster: Any = OneNode()
    nodes = ClusterTransport(ClientFactory((), {}), cluster, Handshake(CallEncoder("rl")), deadline=0.2)
    lose(lambda: nodes.call(0, PING), cluster)
    assert told == [1, 0]
    until(lambda: not [each for each in threading.enumerate() if each.name == "of this test"], "it has ended")


def test_no_task_goes_on_probing_it(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "CALLS_IN_THREADS", 0)
    cluster: Any = OneNode()
    with asyncio.Runner() as runner:
        threads = ClusterTransport(ClientFactory((), {}), cluster, Handshake(CallEncoder("rl")), deadline=0.2)
        nodes = AsyncClusterTransport(threads, max_connections=1)
        lose(lambda: runner.run(nodes.call(0, PING)), cluster)
        assert told == [1, 0]

        async def all_others_end() -> None:
            async with asyncio.timeout(20):
                while len(asyncio.all_tasks()) > 1:
                    await asyncio.sleep(0.01)

        runner.run(all_others_end())
