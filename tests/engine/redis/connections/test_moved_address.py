"""An address that moves to another server: whoever notices it tells all threads and event loops of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

import pytest
import redis

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, StaleRules
from django_ratelimiter.engine.breaker import MAX_FAILURES, CircuitBreaker
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.connections import async_transport
from django_ratelimiter.engine.redis.connections.async_transport import AsyncConnectionPool
from django_ratelimiter.engine.redis.connections.transport import ConnectionPool
from example_project.redis_server import HOST
from tests.clusters import ServerWith, until
from tests.engine.conftest import Blocking
from tests.engine.slow import SlowProxy

DAY = Charge("key", Limit(1_000, 86_400, "token_bucket", burst=1_000))


class Process(NamedTuple):
    """What threads use, what an event loop uses, and the way to the servers."""

    threads: RedisEngine
    loop: Any
    address: SlowProxy
    former: ServerWith
    new: ServerWith

    def pool(self, kind: type) -> Any:
        """Return the connections of threads, or of the event loop."""
        return next(pool for pool in self.threads.server_of(0).pools if isinstance(pool, kind))

    def move(self) -> None:
        self.address.server_port = self.new.port

    def connect_anew(self, engine: Any) -> None:
        """Make a call while the idle connection is in use."""
        pool = self.pool(ConnectionPool if engine is self.threads else AsyncConnectionPool)
        held = pool.try_acquire()
        engine.check([DAY])
        pool.release(held)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(async_transport, "CALLS_IN_THREADS", 0)
    with (
        ServerWith() as former,
        ServerWith() as new,
        SlowProxy(former.port, 0.0) as address,
        redis.Redis.from_url(address.url) as client,
        closing(asyncio.new_event_loop()) as loop,
    ):
        threads = RedisEngine(client, deadline=20.0)
        twin = threads.to_async()
        assert twin is not None
        engine = Blocking(twin, loop)
        threads.publish(1)
        engine.check([DAY], version=1)
        yield Process(threads, engine, address, former, new)
        engine.aclose()


@pytest.mark.parametrize("noticed_by", ["threads", "loop"])
def test_who_connects_to_another_server_tells_all(process: Process, noticed_by: str) -> None:
    """Also where the former server goes on running. What is published then holds for all."""
    process.move()
    process.connect_anew(getattr(process, noticed_by))
    process.threads.publish(2)
    for engine in (process.threads, process.loop):
        with pytest.raises(StaleRules) as stale:
            engine.check([DAY], version=1)
        assert stale.value.number == 2
    assert process.former.ask("GET", "{rl:0}:version") == b"0:1"
    until(lambda: not [line for line in clients(process.former) if "cmd=evalsha" in line], "none is left there")


def test_a_replica_costs_one_call_and_not_one_for_each_connection(process: Process) -> None:
    pool = process.pool(ConnectionPool)
    for connection in [pool.acquire(monotonic() + 120) for _ in range(5)]:
        pool.release(connection)
    process.move()
    process.former.ask("REPLICAOF", HOST, process.new.port)
    with pytest.raises(EngineUnavailable, match="read-only"):
        process.threads.check([DAY])
    for engine in [process.threads, process.loop] * 3:
        assert engine.check([DAY])[0].allowed


def test_an_address_that_alternates_does_not_close_connections_all_the_time(process: Process) -> None:
    process.move()
    process.connect_anew(process.threads)
    generation = process.threads.server_of(0).generation
    for port in [process.former.port, process.new.port] * 3:
        process.address.server_port = port
        process.connect_anew(process.threads)
    assert process.threads.server_of(0).generation == generation


def test_a_server_that_fails_in_threads_is_not_called_on_event_loops_either(process: Process) -> None:
    process.former.stop()
    for _ in range(MAX_FAILURES):
        with pytest.raises(EngineUnavailable):
            process.threads.check([DAY])
    with pytest.raises(EngineUnavailable, match="not called at present"):
        process.loop.check([DAY])
    process.former.start()
    until(lambda: not process.threads.server_of(0).breaker.is_open, "a thread or the loop has probed it")
    assert process.loop.check([DAY])[0].allowed
    assert process.threads.check([DAY])[0].allowed


def test_threads_that_wait_for_a_probe_of_others_go_on_after_it(process: Process) -> None:
    """A claim lasts for seconds, and the calls that come after it need a connection from the thread that waits."""
    pool, (breaker, waits) = process.pool(ConnectionPool), claimed_by_others(process)
    process.threads.server_of(0).renew()
    with pytest.raises(EngineUnavailable, match="not called at present"):
        process.threads.check([DAY])
    assert waits.wait(120), "the thread does"
    breaker.close()
    assert pool.acquire(monotonic() + 120)


def test_an_event_loop_that_waits_for_a_probe_of_others_goes_on_after_it(process: Process) -> None:
    """Else it would sleep through the probes of the next outage."""
    breaker, _ = claimed_by_others(process)
    with pytest.raises(EngineUnavailable, match="not called at present"):
        process.loop.check([DAY])
    breaker.close()
    probing = process.pool(AsyncConnectionPool).probing
    for _ in range(3):
        process.loop.check([DAY])
    assert probing.done()


def claimed_by_others(process: Process) -> tuple[CircuitBreaker, Event]:
    """Return an open breaker whose next probe is not due in this test, and whether someone waits for it."""
    breaker, waits = process.threads.server_of(0).breaker, Event()

    def next_probe_in() -> float:
        waits.set()
        return 600.0

    assert any(breaker.fail(OSError("gone")) for _ in range(MAX_FAILURES))
    breaker.next_probe_in = next_probe_in  # type: ignore[method-assign]
    return breaker, waits


def clients(server: ServerWith) -> list[str]:
    return list(server.ask("CLIENT", "LIST").decode().splitlines())
