"""One connection for event loops: made by redis-py, and from then on spoken to directly, as `wires` does."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as TooLate

from .connection import LOAD, Forgetting, is_incomplete, options_of, reader_for
from .faults import Noted
from .tls import Contexts

_contexts: Final = Contexts()

#: A connection whose end the server does not confirm is let go after so many seconds.
GOODBYE_SECONDS: Final = 1.0


class AsyncWire(asyncio.Protocol):
    """A connection for one call at a time. Times are the event loop's.

    link: redis-py's connection, which is connected; it is kept, for it closes what it made.
    is_sound: a call may be sent: the server has not hung up, and nothing unread has arrived.
    """

    def __init__(self, link: Any) -> None:
        self.is_sound = True
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._reader = reader_for(link)
        self._reply: asyncio.Future[Any] | None = None
        self._due = 0  # replies that are to come
        self._lost = self._loop.create_future()
        self._transport: asyncio.Transport = link._writer.transport
        self._former = self._transport.get_protocol()
        self._transport.set_protocol(self)

    async def ask(self, call: bytes, at: float | None) -> Any:
        """Send one call and give its reply, which may be an exception. `TimeoutError` if there is none at that time.

        What it raises, cancelling included, leaves the connection useless: hang up.
        """
        if not self.is_sound:  # since it was chosen
            raise LostError("Connection closed by server.")
        self._transport.write(call)
        self._due, reply = 1, self._loop.create_future()
        self._reply = reply
        return await within(self._loop, reply, at)

    async def ask_loading(self, call: bytes, at: float | None, forgetting: Forgetting) -> Any:
        """The same to a server that has lost the script, in one round trip."""
        before = forgetting.due()
        loaded, reply = (await self.ask_all(before.packed + LOAD + call, before.replies + 2, at))[-2:]
        forgetting.answered(before)
        return loaded if isinstance(loaded, Exception) else reply

    async def ask_all(self, calls: bytes, replies: int, at: float | None) -> list[Any]:
        """Send several calls at once and give all replies, which may be exceptions."""
        self._transport.write(calls)
        self._due = replies
        return [await self._next(at) for _ in range(replies)]

    def hang_up(self) -> None:
        """Close it at once, without waiting for anything."""
        self.is_sound = False
        self._link._close()
        self._transport.abort()

    async def close(self) -> None:
        """Close it in good order."""
        self.is_sound = False
        self._link._close()
        await asyncio.wait([self._lost], timeout=GOODBYE_SECONDS)

    async def _next(self, at: float | None) -> Any:
        """The next reply."""
        if not is_incomplete(early := self._reader.gets()):
            self._count_reply()
            return early
        if not self.is_sound:
            raise LostError("Connection closed by server.")
        self._reply = self._loop.create_future()
        return await within(self._loop, self._reply, at)

    def _count_reply(self) -> None:
        self._due -= 1
        if not self._due and self._reader.has_data():
            self.is_sound = False  # nobody has asked for what else is there

    def data_received(self, data: bytes) -> None:
        waiting = self._reply
        try:
            self._reader.feed(data)
            if waiting is not None and not waiting.done() and not is_incomplete(reply := self._reader.gets()):
                self._reply = None
                self._count_reply()
                waiting.set_result(reply)
            elif not self._due:
                self.is_sound = False  # nobody has asked for this
        except RedisError as error:  # no reply at all
            self.connection_lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_sound = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(LostError(str(error or "Connection closed by server.")))
        if not self._lost.done():
            self._lost.set_result(None)
            self._former.connection_lost(None)  # redis-py's streams wait for it
        self._link._close()


async def within(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], at: float | None) -> Any:
    """The future's result, or TimeoutError at that time of the event loop."""
    if at is None:
        return await future
    timer = loop.call_at(at, _look_once_more, loop, future)
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            future.exception()  # it came too late for us, and the event loop shall not complain
        raise
    finally:
        timer.cancel()


def _look_once_more(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
    """Time is up; but an event loop that was blocked may not have looked at its sockets since: it does so first."""
    if not future.done():
        loop.call_later(0, _give_up, future)


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TooLate("Redis did not answer within the deadline."))


async def _share_context(pool: ConnectionPool, link: Any) -> None:
    """Read the certificates seldom, and not in the event loop: redis-py does so for each connection, 70 ms long."""
    context = _contexts.of(pool)
    if context is None:
        await asyncio.to_thread(link.ssl_context.get)
        _contexts.keep(pool, link.ssl_context)
    else:
        link.ssl_context = context


async def connect(pool: ConnectionPool, seconds: float | None) -> AsyncWire:
    """A new connection like those of this pool, on this event loop. seconds: see `options_of`.

    Raises anything at all: names are looked up, providers of credentials asked, certificates read.
    """
    link: Any = pool.connection_class(**options_of(pool, seconds))
    link.retry = Retry(NoBackoff(), 0)
    noted = Noted(link)
    try:
        if hasattr(link, "ssl_context"):
            await _share_context(pool, link)
        await link.connect()
        noted.ended()
        return AsyncWire(link)
    except BaseException as error:  # a task may be cancelled half-way
        _contexts.forget(pool)
        await link.disconnect(nowait=True)
        if isinstance(error, RedisError):
            raise noted.ended() or error from error
        raise
