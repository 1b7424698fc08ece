"""One connection for event loops: opened by redis-py, and then used directly, as in `connection`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .connection import LOAD, MORE, VersionDrop, contexts, options_of, reader_for
from .faults import HandshakeErrors

#: Seconds after which a closed connection is dropped even if the server does not confirm the end.
CLOSE_TIMEOUT: Final = 1.0


class AsyncConnection(asyncio.Protocol):
    """A connection for one call at a time. Times are the event loop's.

    redis_connection: redis-py's open connection; it is kept, because it closes what it opened. generation: see Server.
    """

    def __init__(self, redis_connection: Any, generation: int) -> None:
        #: True if a call may be sent: the server has not disconnected, and there is no unread data.
        self.is_usable: bool = True
        self.generation = generation
        self._redis_connection = redis_connection
        self._loop = asyncio.get_running_loop()
        self._reader = reader_for(redis_connection)
        self._reply: asyncio.Future[Any] | None = None
        #: Number of replies that have not arrived yet.
        self._awaited_replies = 0
        self._closed = self._loop.create_future()
        self._transport: asyncio.Transport = redis_connection._writer.transport
        self._replaced_protocol = self._transport.get_protocol()
        self._transport.set_protocol(self)

    async def call(self, call: bytes, loop_deadline: float | None) -> Any:
        """Send one call and return its reply, which may be an exception. Raises TimeoutError at the deadline.

        After any exception, also a cancellation, the connection cannot be used: abort it.
        """
        if not self.is_usable:  # closed since it was chosen
            raise RedisConnectionError("Connection closed by server.")
        self._transport.write(call)
        self._awaited_replies, reply = 1, self._loop.create_future()
        self._reply = reply
        return await within(self._loop, reply, loop_deadline)

    async def call_after_script_load(self, call: bytes, loop_deadline: float | None, version_drop: VersionDrop) -> Any:
        """Send a call to a server that has lost the script, and load the script, in one round trip."""
        drop_commands = version_drop.due_commands()
        loaded, reply = (
            await self.call_all(drop_commands.packed + LOAD + call, drop_commands.replies + 2, loop_deadline)
        )[-2:]
        version_drop.mark_sent(drop_commands)
        return loaded if isinstance(loaded, Exception) else reply

    async def call_all(self, calls: bytes, replies: int, loop_deadline: float | None) -> list[Any]:
        """Send several calls at once and return all replies, which may be exceptions."""
        self._transport.write(calls)
        self._awaited_replies = replies
        return [await self._next(loop_deadline) for _ in range(replies)]

    def abort(self) -> None:
        """Close it at once, without waiting for anything."""
        self.is_usable = False
        self._redis_connection._close()
        self._transport.abort()

    async def aclose(self) -> None:
        """Close it, and wait for the end of the connection."""
        self.is_usable = False
        self._redis_connection._close()
        await asyncio.wait([self._closed], timeout=CLOSE_TIMEOUT)

    async def _next(self, loop_deadline: float | None) -> Any:
        """Return the next reply."""
        if (early := self._reader.gets()) is not MORE:
            self._count_reply()
            return early
        if not self.is_usable:
            raise RedisConnectionError("Connection closed by server.")
        self._reply = self._loop.create_future()
        return await within(self._loop, self._reply, loop_deadline)

    def _count_reply(self) -> None:
        self._awaited_replies -= 1
        if not self._awaited_replies and self._reader.has_data():
            self.is_usable = False  # unexpected data

    def data_received(self, data: bytes) -> None:
        waiting = self._reply
        try:
            self._reader.feed(data)
            if waiting is not None and not waiting.done() and (reply := self._reader.gets()) is not MORE:
                self._reply = None
                self._count_reply()
                waiting.set_result(reply)
            elif not self._awaited_replies:
                self.is_usable = False  # unexpected data
        except RedisError as error:  # not a valid reply
            self.connection_lost(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_usable = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(RedisConnectionError(str(error or "Connection closed by server.")))
        if not self._closed.done():
            self._closed.set_result(None)
            self._replaced_protocol.connection_lost(None)  # redis-py's streams wait for it
        self._redis_connection._close()


async def within(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], loop_deadline: float | None) -> Any:
    """Return the future's result. Raises TimeoutError at this time of the event loop."""
    if loop_deadline is None:
        return await future
    timer = loop.call_at(loop_deadline, _expire_after_read, loop, future)
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled():
            future.exception()  # too late; reading it stops asyncio from logging it
        raise
    finally:
        timer.cancel()


def _expire_after_read(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
    """Set the timeout after reading the sockets once more: a blocked event loop may not have read the reply yet."""
    if not future.done():
        loop.call_later(0, _expire, future)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(RedisTimeoutError("Redis did not answer within the deadline."))


async def connect(pool: ConnectionPool, seconds: float | None, generation: int) -> AsyncConnection:
    """Return a new connection like those of this pool, on this event loop. Arguments: see `options_of` and Server.

    May raise any exception: from name lookups, credential providers, or certificates.
    """
    redis_connection: Any = pool.connection_class(**options_of(pool, seconds))
    redis_connection.retry = Retry(NoBackoff(), 0)
    errors = HandshakeErrors(redis_connection)
    try:
        if hasattr(redis_connection, "ssl_context"):
            if (context := contexts.get(pool)) is None:  # redis-py reads the certificates each time, which takes 70 ms
                await asyncio.to_thread(redis_connection.ssl_context.get)
                contexts.put(pool, redis_connection.ssl_context)
            else:
                redis_connection.ssl_context = context
        await redis_connection.connect()
        errors.stop()
        return AsyncConnection(redis_connection, generation)
    except BaseException as error:  # the task may be cancelled half-way
        contexts.discard(pool)
        await redis_connection.disconnect(nowait=True)
        if isinstance(error, RedisError):
            raise errors.stop() or error from error
        raise
