"""The connections of event loops. Each belongs to the loop that opened it; each loop has a maximum number.

A loop that lives only for one request, as an asynchronous view has under WSGI, is not worth a connection: connecting
takes longer than the call. So the first calls of each loop are made in threads, over the connections of threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ....exceptions import EngineUnavailable
from .async_connection import AsyncConnection, connect, within
from .faults import PoolTimeout, connection_error, explain, raise_if_broken
from .server import Server
from .transport import CONNECT_TIMEOUT, Transport

#: Seconds for a call if neither the engine nor the client has a timeout: redis-py's default.
DEFAULT_TIMEOUT: Final = 5.0

#: Calls of an event loop before it opens connections: by then, threads have taken about as long as connecting takes.
CALLS_IN_THREADS: Final = 20


#: Maximum number of connections that one event loop opens at the same time; with TLS each takes some CPU time.
MAX_CONNECTING: Final = 4


class AsyncConnectionPool:
    """The connections of one event loop: idle ones, calls that wait for one, and tasks that open them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client_pool: Any,
        server: Server,
        max_connections: int,
        deadline: float | None,
    ) -> None:
        self.loop = loop
        #: An asynchronous generator, which the event loop closes at its end; that closes the connections.
        self.close_with_loop: AsyncGenerator[None, None] = self._close_at_loop_end()
        self._client_pool, self._server = client_pool, server
        server.pools.add(self)
        self._max_connections, self._deadline = max_connections, deadline
        self.probing: asyncio.Task[None] | None = None
        self.woken: asyncio.Event = asyncio.Event()
        self._idle: deque[AsyncConnection] = deque()
        self._waiters: dict[asyncio.Future[AsyncConnection], None] = {}  # in the order of arrival
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = self._acquired = self._counted = 0
        self._round_trip = 0.0

    def try_acquire(self) -> AsyncConnection | None:
        """Return an idle connection that is usable."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.generation == self._server.generation:
                self._acquired += 1
                return connection
            connection.abort()  # old, closed by the server, or with unread data
        return None

    async def acquire(self, loop_deadline: float | None) -> AsyncConnection:
        """Return a connection as soon as there is one. Raises the exception of connecting, or TimeoutError."""
        waiter, counted = self.loop.create_future(), self._counted
        self._waiters[waiter] = None
        self._connect_if_needed()
        try:
            connection: AsyncConnection = await within(self.loop, waiter, loop_deadline)
        except RedisError as error:
            if self._acquired and isinstance(error, RedisTimeoutError):
                raise PoolTimeout("All connections were in use until the deadline.") from error
            if self._counted != counted:  # of calls that wait together, one counts as a failure
                raise PoolTimeout(str(error)) from error
            self._counted += 1
            raise
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())
            raise
        finally:
            self._waiters.pop(waiter, None)
        if loop_deadline is not None and loop_deadline - self.loop.time() < self._round_trip:
            self.release(connection)  # too late for a reply: others can use it
            raise PoolTimeout("No connection in time for a reply within the deadline.")
        return connection

    def release(self, connection: AsyncConnection) -> None:
        """Take back a connection whose call was answered. It is closed if it is old, or if there is unread data."""
        if not connection.is_usable or connection.generation != self._server.generation:
            return self.discard(connection)
        self._acquired -= 1
        self._hand_over(connection)

    def discard(self, connection: AsyncConnection) -> None:
        """Close a connection that cannot be used any more."""
        self._acquired -= 1
        connection.abort()
        self._connect_if_needed()

    def _hand_over(self, connection: AsyncConnection) -> None:
        """Give a connection to the call that has waited longest, or keep it."""
        while self._waiters:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if not waiter.done():
                self._acquired += 1
                waiter.set_result(connection)
                return
        self._idle.append(connection)

    def close_idle(self) -> None:
        """Close the idle connections. May be called in any thread; this loop closes them soon."""
        with suppress(RuntimeError):  # no loop runs in this thread
            if asyncio.get_running_loop() is self.loop:
                return self._close_idle()
        with suppress(RuntimeError):  # this loop has ended
            self.loop.call_soon_threadsafe(self._close_idle)

    def wake(self) -> None:
        """Let the task that probes look again whether and when it must. May be called in any thread."""
        with suppress(RuntimeError):  # this loop has ended
            self.loop.call_soon_threadsafe(self.woken.set)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """Start a task that does not end with a request."""
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)  # the event loop keeps only a weak reference
        task.add_done_callback(self._tasks.discard)
        return task

    async def connect(self) -> AsyncConnection:
        """Return a new connection, which counts as in use. Call it in a task if it may outlast the call's deadline."""
        seconds = None if self._deadline is None else CONNECT_TIMEOUT
        connection = await connect(self._client_pool, seconds, self._server.generation)
        try:
            if self._deadline is not None:  # without one, NOSCRIPT comes in time
                await self._shake_hands(connection, self._deadline)
        except BaseException:
            connection.abort()
            raise
        self._acquired += 1
        return connection

    async def _shake_hands(self, connection: AsyncConnection, deadline: float) -> None:
        steps = self._server.shake_hands(connection)
        turn: Any = partial(next, steps)
        with suppress(StopIteration):
            while True:
                pipeline, began = turn(), self.loop.time()
                turn = partial(
                    steps.send, await connection.call_all(pipeline.packed, pipeline.replies, began + CONNECT_TIMEOUT)
                )
                self._round_trip = min(self.loop.time() - began, deadline / 2)

    def _connect_if_needed(self) -> None:
        while self._connecting < min(len(self._waiters), MAX_CONNECTING, self._max_connections - self._acquired):
            self._connecting += 1
            self.spawn(self._connect_for_waiters())

    async def _connect_for_waiters(self) -> None:
        """Open a connection for waiting calls; it is finished even if the call stops waiting."""
        try:
            connection = await self.connect()
        except Exception as error:
            if self._connecting == 1 and not self._acquired:
                self._fail_waiters(error)
            self._connecting -= 1
        else:
            self._connecting -= 1
            self.release(connection)
            self._connect_if_needed()

    def _fail_waiters(self, error: Exception) -> None:
        """Fail waiting calls if no connection can be opened, and none is in use that could be released."""
        waiter, self._waiters = self._waiters, {}
        for each in waiter:
            if not each.done():
                each.set_exception(connection_error(error))

    def report_failure(self, error: Exception) -> None:
        """Record a failed call. After several, a task of this loop begins to probe."""
        if self._deadline is not None and self._server.fail(error):
            self.start_probing()

    def start_probing(self) -> None:
        """Probe on this loop, unless it does so already. Several loops and a thread never probe at the same time."""
        if self.probing is None or self.probing.done():
            self.probing = self.spawn(self._probe_until_closed())

    async def _probe_until_closed(self) -> None:
        breaker = self._server.breaker
        while breaker.is_open and not breaker.is_retired:
            self.woken.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.woken.wait(), breaker.next_probe_in())
            if breaker.claim_probe():
                try:
                    await self._probe_once()
                except Exception as error:  # see `connect`
                    breaker.fail_probe(connection_error(error))

    async def _probe_once(self) -> None:
        connection = self.try_acquire() or await self.connect()
        try:
            call, kind = self._server.probe()
            loop_deadline = self.loop.time() + (self._deadline or CONNECT_TIMEOUT)
            reply = await connection.call(call, loop_deadline)
            if isinstance(reply, NoScriptError):
                reply = await connection.call_after_script_load(call, loop_deadline, self._server.version_drop)
            raise_if_broken(reply, kind)
        except BaseException:
            self.discard(connection)
            raise
        self._server.breaker.close()
        self.release(connection)

    async def _close_at_loop_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._server.pools.discard(self)
            for task in list(self._tasks):
                task.cancel()
            while self._idle:
                await self._idle.pop().aclose()


class AsyncTransport:
    """Transport for event loops.

    max_connections: of one event loop; the client's pool may have a smaller one. threads: the transport to the same
    server for threads; `None` = each loop connects at its first call. Other arguments as for Transport; without a
    deadline the client's `socket_timeout` is used instead, and each call tries again.
    """

    def __init__(
        self,
        client: Redis,
        server: Server,
        max_connections: int,
        deadline: float | None = None,
        threads: Transport | None = None,
    ) -> None:
        client_pool = self._client_pool = client.connection_pool
        self._timeout = (
            client_pool.connection_kwargs.get("socket_timeout", DEFAULT_TIMEOUT) if deadline is None else deadline
        )
        self.server, self._deadline, self._threads = server, deadline, threads
        self._max_connections = min(max_connections, client_pool.max_connections or max_connections)
        self._calls: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        self._pools: dict[asyncio.AbstractEventLoop, AsyncConnectionPool] = {}

    async def call(self, packed: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        """Send one packed call and read its reply. A call whose reply was lost is not sent again.

        deadline_at: as for Transport. kind: of the reply; a script's is a list.
        """
        loop, breaker = asyncio.get_running_loop(), self.server.breaker
        pool = self._pools.get(loop)
        left = self._timeout if deadline_at is None else deadline_at - monotonic()
        if pool is None and (pool := await self._pool_for(loop)) is None:
            assert self._threads is not None
            if left is not None:
                deadline_at = monotonic() + left
            return await loop.run_in_executor(self.server.executor, self._threads.call, packed, deadline_at, kind)
        loop_deadline = None if left is None else loop.time() + left
        if breaker.is_open:
            pool.start_probing()
            raise EngineUnavailable(breaker.reason())
        try:
            connection = pool.try_acquire() or await pool.acquire(loop_deadline)
            try:
                reply = await connection.call(packed, loop_deadline)
                if type(reply) is not kind:
                    if isinstance(reply, NoScriptError):  # nothing was run: a restart, a flush, a promoted replica
                        reply = await connection.call_after_script_load(packed, loop_deadline, self.server.version_drop)
                    raise_if_broken(reply, kind)
            except BaseException:  # a cancelled task leaves a reply unread
                pool.discard(connection)
                raise
        except (RedisError, OSError) as error:
            pool.report_failure(error)
            raise EngineUnavailable(f"Redis did not decide: {explain(error)}") from error
        pool.release(connection)
        if breaker.failures:
            breaker.succeed()
        if type(reply) is not kind:
            raise EngineUnavailable(f"Redis did not decide: {explain(reply)}") from reply
        return reply

    async def aclose(self) -> None:
        """Close the idle connections of this event loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close_with_loop.aclose()

    async def _pool_for(self, loop: asyncio.AbstractEventLoop) -> AsyncConnectionPool | None:
        """Return the connections that a loop opens from now on; `None` if a thread is to make this call."""
        self.server.begin_after_fork()
        if self._threads is not None and (calls := self._calls.get(loop, 0)) < CALLS_IN_THREADS:
            self._calls[loop] = calls + 1
            return None
        for ended in [other for other in list(self._pools) if other.is_closed()]:
            self.server.pools.discard(self._pools.pop(ended, None))
        pool = self._pools[loop] = AsyncConnectionPool(
            loop, self._client_pool, self.server, self._max_connections, self._deadline
        )
        await anext(pool.close_with_loop)
        return pool
