"""AsyncRedisEngine decides as RedisEngine does, whatever becomes of its server, its tasks and its event loops."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.redis import AsyncRedisEngine
from example_project.redis_server import RedisServer
from tests.engine.strategies import limit_by
from tests.engine.trio import Trio
from tests.engine.walk import Walk

DAY = Charge("key", Limit(5, 86_400, "token_bucket"), usage="rule|tier")
#: Seconds that nothing here takes.
LONG = 120.0


def on_a_loop(url: str, use: Callable[[AsyncRedisEngine], Awaitable[Any]], **options: Any) -> Any:
    """What `use` gives for an engine on an event loop of its own."""

    async def main() -> Any:
        async with redis.asyncio.Redis.from_url(url) as client:
            engine = AsyncRedisEngine(client, "test", **options)
            try:
                return await use(engine)
            finally:
                await engine.aclose()

    return asyncio.run(main())


@given(seed=st.integers(0, 2**64 - 1))
def test_the_same_verdicts(blocking: Any, seed: int) -> None:
    random = Random(seed)
    Walk(Trio(blocking), random, [limit_by(random) for _ in range(2)]).go(20)


async def answers(engine: AsyncRedisEngine) -> bool:
    try:
        return bool(await engine.peek([DAY]))
    except EngineUnavailable:
        return False


def test_a_crowd_before_a_sound_server_is_no_outage(redis_url: str) -> None:
    """More calls at once than the event loop can serve in time must not make it stop asking."""

    async def crowd(engine: AsyncRedisEngine) -> None:
        async with asyncio.timeout(LONG):
            while not await answers(engine):
                pass
        pool = engine._transport._pools[asyncio.get_running_loop()]
        connection = pool.try_acquire()
        assert connection is not None
        for result in await asyncio.gather(*(engine.check([DAY]) for _ in range(5)), return_exceptions=True):
            assert isinstance(result, EngineUnavailable)
        assert not engine.server_of(0).breaker.is_open
        pool.release(connection)

    on_a_loop(redis_url, crowd, deadline=0.5, max_connections=1)


def test_connections_that_come_too_late_for_a_crowd_are_no_outage(redis_url: str) -> None:
    """What is given back to calls that have no time left shows that the server answers."""

    async def crowd(engine: AsyncRedisEngine) -> None:
        await engine.check([DAY])
        pool = engine._transport._pools[asyncio.get_running_loop()]
        connection = pool.try_acquire()
        assert connection is not None
        pool._round_trip = LONG  # more than any call has
        waiting = asyncio.gather(*(engine.check([DAY]) for _ in range(5)), return_exceptions=True)
        await asyncio.sleep(0)
        pool.release(connection)
        assert {type(result) for result in await waiting} == {EngineUnavailable}
        assert (await engine.check([DAY]))[0].remaining == 3

    on_a_loop(redis_url, crowd, deadline=LONG / 2, max_connections=1)


def test_a_cancelled_call_leaves_no_reply_to_others(server: RedisServer) -> None:
    async def use(engine: AsyncRedisEngine) -> None:
        cancelled = 0
        for number in range(100):
            task = asyncio.ensure_future(engine.check([Charge(f"cancelled{number}", DAY.limit)]))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            cancelled += isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
            kept = Charge(f"kept{number}", DAY.limit, 2)
            assert [verdict.charge for verdict in await engine.check([kept])] == [kept]
            assert (await engine.peek([kept]))[0].remaining == 3
        assert cancelled >= 15, "those that had not begun, at least"

    on_a_loop(server.url, use, max_connections=1)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("in_good_order", [True, False])
def test_event_loops_that_have_ended_leave_nothing_behind(redis_url: str, in_good_order: bool) -> None:
    """As under WSGI with asynchronous views, which make an event loop for each request."""
    engine = AsyncRedisEngine(redis.asyncio.Redis.from_url(redis_url), "test", deadline=LONG)
    ended: list[weakref.ref[asyncio.AbstractEventLoop]] = []
    for _ in range(5):
        loop = asyncio.new_event_loop()
        ended.append(weakref.ref(loop))
        loop.run_until_complete(engine.check([DAY]))
        if in_good_order:
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        del loop
    gc.collect()
    assert [loop() for loop in ended[:-1]] == [None] * 4
    del engine
    while gc.collect() or any(loop() for loop in ended):  # while it is ignored what Python says of open sockets
        pass
