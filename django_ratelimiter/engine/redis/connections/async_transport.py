"""The connections of event loops. Each belongs to the loop that opened it; each loop has a maximum number.

A loop that lives only for one request, as an asynchronous view has under WSGI, is not worth a connection: connecting
takes longer than the call. So the first calls of each loop are made in threads, over the connections of threads.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from ....exceptions import EngineUnavailable
from .async_pool import AsyncConnectionPool
from .faults import connection_error, explain, raise_if_broken
from .pool import CONNECT_TIMEOUT
from .server import Server
from .transport import Transport

#: Seconds for a call if neither the engine nor the client has a timeout: redis-py's default.
DEFAULT_TIMEOUT: Final = 5.0

#: Calls of an event loop before it opens connections: by then, threads have taken about as long as connecting takes.
CALLS_IN_THREADS: Final = 20


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
            self._start_probing(pool)
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
            raise self._report_failure(pool, error) from error
        pool.release(connection)
        if breaker.failures:
            breaker.succeed()
        if type(reply) is not kind:
            raise EngineUnavailable(f"Redis did not decide: {explain(reply)}") from reply
        return reply

    def _report_failure(self, pool: AsyncConnectionPool, error: RedisError | OSError) -> EngineUnavailable:
        """Record the failure and return the exception to raise."""
        if self._deadline is not None and self.server.fail(error):
            self._start_probing(pool)
        return EngineUnavailable(f"Redis did not decide: {explain(error)}")

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

    def _start_probing(self, pool: AsyncConnectionPool) -> None:
        """Probe on this loop, unless it does so already. Several loops and a thread never probe at the same time."""
        if pool.probing is None or pool.probing.done():
            pool.probing = pool.spawn(self._probe_until_closed(pool))

    async def _probe_until_closed(self, pool: AsyncConnectionPool) -> None:
        breaker = self.server.breaker
        while breaker.is_open and not breaker.is_retired:
            pool.woken.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(pool.woken.wait(), breaker.next_probe_in())
            if breaker.claim_probe():
                try:
                    await self._probe_once(pool)
                except Exception as error:  # see `connect`
                    breaker.fail_probe(connection_error(error))

    async def _probe_once(self, pool: AsyncConnectionPool) -> None:
        connection = pool.try_acquire() or await pool.connect()
        try:
            call, kind = self.server.probe()
            loop_deadline = pool.loop.time() + (self._timeout or CONNECT_TIMEOUT)
            reply = await connection.call(call, loop_deadline)
            if isinstance(reply, NoScriptError):
                reply = await connection.call_after_script_load(call, loop_deadline, self.server.version_drop)
            raise_if_broken(reply, kind)
        except BaseException:
            pool.discard(connection)
            raise
        self.server.breaker.close()
        pool.release(connection)
