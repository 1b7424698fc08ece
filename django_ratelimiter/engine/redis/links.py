"""The connections that calls are made on: one per thread at work, or a bounded number per event loop."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, finalize

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import ConnectionInterface
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.retry import Retry

from ...exceptions import EngineUnavailable
from ..scripts import CHECK


class Links:
    """Connections made as the client's pool makes them and kept between calls, one per thread at work.

    They stand beside the pool, not in it: the pool's `max_connections` is a promise to its other users.
    """

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        self._idle: deque[ConnectionInterface] = deque()
        self._pid = os.getpid()
        finalize(self, _hang_up, self._idle)

    def ask(self, packed: bytes) -> list[int]:
        """Send one packed call and read its reply. A call whose reply was lost is not sent again."""
        try:
            link = self._take()
            try:
                try:
                    link.send_packed_command([packed], check_health=False)
                    reply: list[int] = link.read_response()
                except NoScriptError:  # nothing was run: a restart, a flush of scripts, a promoted replica
                    link.send_command("SCRIPT LOAD", CHECK)
                    link.read_response()
                    link.send_packed_command([packed], check_health=False)
                    reply = link.read_response()
            except BaseException as error:
                # An error that Redis answers with leaves the connection sound; but a replica may be our old master.
                if isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError):
                    self._idle.append(link)
                else:
                    link.disconnect()
                raise
            self._idle.append(link)
            return reply
        except (RedisError, OSError) as error:
            raise EngineUnavailable(f"Redis gave no decision: {error}") from error

    def _take(self) -> ConnectionInterface:
        """An idle connection that is alive, or a new one."""
        if self._pid != os.getpid():  # after a fork the sockets belong to the parent
            _hang_up(self._idle)
            self._pid = os.getpid()
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._new()
            try:
                if not link.can_read():
                    return link
            except (RedisError, OSError):
                pass
            link.disconnect()  # closed by the server, or with something unread on it

    def _new(self) -> ConnectionInterface:
        link: ConnectionInterface = self._pool.connection_class(**self._pool.connection_kwargs)
        link.retry = Retry(NoBackoff(), 0)  # type: ignore[attr-defined]  # the deadline of a decision allows no second try
        link.connect()
        return link


def _hang_up(idle: deque[ConnectionInterface]) -> None:
    """Close connections; where they are a parent process's, only our hold on them."""
    with suppress(IndexError):
        while True:
            idle.pop().disconnect()


class AsyncLinks:
    """The same for event loops. A connection belongs to the loop that it was made on."""

    def __init__(self, client: AsyncRedis, most: int) -> None:
        self._pool = client.connection_pool
        self._most = most
        self._timeout = self._pool.connection_kwargs.get("socket_timeout")
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()

    async def ask(self, packed: bytes) -> list[int]:
        """Send one packed call and read its reply. A call whose reply was lost is not sent again."""
        loop = asyncio.get_running_loop()
        kept = self._loops.get(loop)
        if kept is None:
            kept = self._loops[loop] = _OfLoop(self._most)
            await anext(kept.until_shutdown)
        idle, free = kept.idle, kept.free
        try:
            if free.locked():
                await asyncio.wait_for(free.acquire(), self._timeout)
            else:
                await free.acquire()
        except TimeoutError as error:
            raise EngineUnavailable(f"No connection to Redis became free of {self._most} at work.") from error
        try:
            return await self._ask(idle, packed)
        except (RedisError, OSError) as error:
            raise EngineUnavailable(f"Redis gave no decision: {error}") from error
        finally:
            free.release()

    async def close(self) -> None:
        """Close the idle connections of this event loop."""
        kept = self._loops.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.until_shutdown.aclose()

    async def _ask(self, idle: deque[Any], packed: bytes) -> list[int]:
        link = await self._take(idle)
        try:
            try:
                await link.send_packed_command([packed], check_health=False)
                reply: list[int] = await link.read_response()
            except NoScriptError:  # nothing was run: a restart, a flush of scripts, a promoted replica
                await link.send_command("SCRIPT LOAD", CHECK, check_health=False)
                await link.read_response()
                await link.send_packed_command([packed], check_health=False)
                reply = await link.read_response()
        except BaseException as error:  # a task that was cancelled leaves a reply unread
            if isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError):
                idle.append(link)
            else:
                await link.disconnect(nowait=True)
            raise
        idle.append(link)
        return reply

    async def _take(self, idle: deque[Any]) -> Any:
        """An idle connection that is alive, or a new one."""
        while idle:
            link = idle.pop()
            try:
                if link.is_connected and not await _can_read(link):
                    return link
            except (RedisError, OSError):
                pass
            await link.disconnect(nowait=True)  # closed by the server, or with something unread on it
        link = self._pool.connection_class(**self._pool.connection_kwargs)
        link.retry = AsyncRetry(NoBackoff(), 0)
        try:
            await link.connect()
        except BaseException:  # a task may be cancelled half-way
            await link.disconnect(nowait=True)
            raise
        return link


class _OfLoop:
    """What one event loop has: idle connections, closed when the loop ends, and places for calls at work."""

    def __init__(self, most: int) -> None:
        self.idle: deque[Any] = deque()
        self.free = asyncio.Semaphore(most)
        self.until_shutdown = _closing_at_the_end(self.idle)


async def _closing_at_the_end(idle: deque[Any]) -> AsyncGenerator[None]:
    """Once begun it is closed by the event loop's own end, as every asynchronous generator, and closes these."""
    try:
        yield
    finally:
        while idle:
            await idle.pop().disconnect()


async def _can_read(link: Any) -> bool:
    """Whether something unread is on it; redis-py has renamed the question."""
    ask = getattr(link, "can_read", None) or link.can_read_destructive
    return bool(await ask())
