"""A decision waits for Redis until its deadline and no longer, and what has arrived by then is taken."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from django_ratelimiter.engine.redis.connections import async_transport, transport
from example_project.redis_server import RedisServer
from tests.clusters import stopped
from tests.counting import engine_at
from tests.engine.answering import VERDICT, Answering
from tests.engine.redis.test_async_engine import on_a_loop
from tests.making import fork

DAY = Charge("key", Limit(1_000, 86_400, "token_bucket", burst=1_000))
#: Longer than any hiccup of a busy machine: only where the test wants it does it pass.
LONG = 30.0


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _no_thread_of_others() -> None:
    """An engine that another test has dropped may probe until it is collected."""
    gc.collect()
    wait_until(lambda: not threads())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ratelimiter-redis"]


def test_no_thread_while_all_is_well(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client, "test", deadline=LONG)
    for _ in range(3):
        engine.check([DAY])
    wait_until(lambda: not threads())
    engine.check([DAY])
    assert not threads()


def test_a_hung_server_is_asked_three_times_and_then_not_until_it_answers(
    server: RedisServer, of_either_kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_transport, "CALLS_IN_THREADS", 0)
    deadline = 0.1
    with engine_at(server.url, deadline=deadline) as own:
        engine = of_either_kind(own)
        wait_until(lambda: admits(engine))
        with stopped(server):
            for _ in range(3):
                began = time.monotonic()
                with pytest.raises(EngineUnavailable):
                    engine.check([DAY])
                assert time.monotonic() - began > deadline * 0.9
            assert own.server_of(0).breaker.is_open
            for _ in range(50):
                with pytest.raises(EngineUnavailable) as caught:
                    engine.check([DAY])
                assert caught.value.__cause__ is None, "nobody is asked, or waited for"
            assert len(threads()) <= 1
        wait_until(lambda: admits(engine))
        wait_until(lambda: not threads())


def test_where_no_thread_could_be_had_one_is_begun_later(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that is out of processes says so once, and the server would never be probed.

    The server runs on: another program could take the port of one that stops.
    """
    with redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client, "test", deadline=LONG)
        engine.check([DAY])
        wait_until(lambda: not threads())

        def reject(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", reject)
            client.client_kill_filter(_type="normal")
            for _ in range(MAX_FAILURES + 1):
                with pytest.raises(EngineUnavailable):
                    engine.check([DAY])
        wait_until(lambda: admits(engine))


def test_threads_for_which_connections_come_too_late_see_no_outage(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls, ahead = RedisEngine(redis_client, "test", deadline=LONG), 2 * MAX_FAILURES, [0.0]
    (pool,) = engine.server_of(0).pools
    shake_hands = pool._shake_hands

    def slowly(connection: Any) -> None:
        wait_until(lambda: pool.waiters in (calls, 0))
        shake_hands(connection)
        ahead[0], pool._round_trip = 0.6 * LONG, LONG  # what is left is less than a reply takes

    monkeypatch.setattr(transport, "monotonic", lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(pool, "_shake_hands", slowly)
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(engine.check([DAY]))
        except EngineUnavailable as error:
            answers.append(error)

    asking = [threading.Thread(target=ask) for _ in range(calls)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert [type(answer) for answer in answers] == [EngineUnavailable] * len(asking)
    assert not engine.server_of(0).breaker.is_open
    assert engine.check([DAY])[0].allowed


def test_calls_that_wait_for_one_connection_are_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lookup or login that fails must not stop all calls, however many threads or tasks wait for it."""
    left = [2 * MAX_FAILURES]

    def fail(*_: object) -> None:
        wait_until(lambda: pool.waiters == left[0])
        left[:] = [0]  # another attempt ends when nobody waits any more
        raise OSError("no such host")

    async def fail_on_a_loop(*_: object) -> None:  # its task begins after those of all calls
        raise OSError("no such host")

    monkeypatch.setattr(transport, "connect", fail)
    monkeypatch.setattr(async_transport, "connect", fail_on_a_loop)
    engine = RedisEngine(redis.Redis(port=1), "test", deadline=LONG)
    [pool] = engine.server_of(0).pools
    with ThreadPoolExecutor(2 * MAX_FAILURES) as threads:
        answers = [threads.submit(engine.check, [DAY]) for _ in range(2 * MAX_FAILURES)]
    assert all("no such host" in str(each.exception()) for each in answers)
    assert engine.server_of(0).breaker.failures == 1

    async def ask(engine: AsyncRedisEngine) -> None:
        asking = [engine.check([DAY]) for _ in range(2 * MAX_FAILURES)]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert all("no such host" in str(each) for each in answers)
        assert engine.server_of(0).breaker.failures == 1

    on_a_loop("redis://127.0.0.1:1", ask, deadline=LONG)


def test_connections_from_before_an_outage_are_not_used_after_it(server: RedisServer) -> None:
    """A firewall may have forgotten all of them; each would cost a request its deadline."""
    with engine_at(server.url, deadline=LONG) as engine:
        pool = engine._transport._pool
        connections = [pool._connect_new(1.0) for _ in range(5)]
        pool.idle.extend(connections)
        for _ in range(MAX_FAILURES):
            pool.report_failure(OSError("timed out"))
        assert not any(vars(connection._redis_connection)["_sock"] for connection in connections)
        wait_until(lambda: admits(engine))
        assert not set(pool.idle) & set(connections)

    async def use(engine: AsyncRedisEngine) -> int:
        await asyncio.gather(*(engine.check([DAY]) for _ in range(10)))
        (pool,) = engine._transport._pools.values()
        before = list(pool._idle)
        with stopped(server):
            await asyncio.gather(*(engine.check([DAY]) for _ in range(MAX_FAILURES)), return_exceptions=True)
        await until_admitted(engine)
        assert not set(pool._idle) & set(before)
        return len(before)

    assert on_a_loop(server.url, use, deadline=1.0) > MAX_FAILURES


def test_a_reply_that_arrives_while_the_event_loop_is_blocked_is_taken(server: RedisServer) -> None:
    """The time is up when the loop comes to look, but Redis has answered in time."""

    deadline = 0.2

    async def use(engine: AsyncRedisEngine) -> None:
        await until_admitted(engine)
        for _ in range(3):
            before, due_at = answered(server), time.monotonic() + 2 * deadline
            asking = asyncio.ensure_future(engine.check([DAY]))
            await asyncio.sleep(0)  # it is sent
            wait_until(lambda: answered(server) > before and time.monotonic() > due_at)  # noqa: B023
            assert (await asking)[0].allowed

    on_a_loop(server.url, use, deadline=deadline)


def answered(server: RedisServer) -> int:
    """The number of calls that the server has answered."""
    with redis.Redis.from_url(server.url) as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_a_reply_that_arrives_while_the_thread_waits_for_its_turn_is_taken(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client, "test", deadline=0.2)
    wait_until(lambda: admits(engine))
    (connection,) = engine._transport._pool.idle
    receive = connection._receive

    def late(buffer: bytearray) -> int:
        connection._receive = receive
        wait_until(lambda: connection.has_arrived(0))
        raise TimeoutError("timed out")

    connection._receive = late
    assert engine.check([DAY])[0].allowed


def test_a_reply_in_pieces_does_not_make_the_deadline_begin_anew() -> None:
    """A byte each 50 ms would never be a time-out of a socket."""
    with Answering({"EVALSHA": VERDICT}, pause=0.05) as server, redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client, deadline=0.2)

        def times_out() -> bool:
            with pytest.raises(EngineUnavailable) as caught:  # the whole reply takes 2 s, and more on a busy machine
                engine.check([DAY])
            return "timed out" in str(caught.value)

        wait_until(times_out)  # a busy machine may not even be connected at first


def test_what_an_earlier_call_has_used_up_is_not_given_again(server: RedisServer) -> None:
    with engine_at(server.url, deadline=LONG) as engine:
        engine.check([DAY])
        with stopped(server):
            began = time.monotonic()
            with pytest.raises(EngineUnavailable):
                engine._transport.call(b"*1\r\n$4\r\nPING\r\n", time.monotonic() + 0.05)
            assert time.monotonic() - began < LONG / 2
        assert engine.check([DAY])[0].allowed, "and the next one has all of it"


def test_a_process_that_was_forked_makes_connections_of_its_own(server: RedisServer) -> None:
    with engine_at(server.url, deadline=LONG) as engine:
        engine.check([DAY])
        with stopped(server):
            engine.server_of(0).breaker.fail(OSError("1"))
            engine.server_of(0).breaker.fail(OSError("2"))
            next(iter(engine.server_of(0).pools)).report_failure(OSError("3"))  # a thread of the parent probes
        child = fork()
        if not child:  # pragma: no cover
            os._exit(0 if engine.check([DAY])[0].allowed else 1)
        assert os.waitpid(child, 0)[1] == 0
        wait_until(lambda: admits(engine))


def admits(engine: RedisEngine) -> bool:
    try:
        return engine.check([DAY])[0].allowed
    except EngineUnavailable:
        return False


async def until_admitted(engine: AsyncRedisEngine) -> None:
    async with asyncio.timeout(120):
        while True:
            try:
                await engine.check([DAY])
                return
            except EngineUnavailable:
                await asyncio.sleep(0.005)
