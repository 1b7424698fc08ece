"""The connections of event loops. Each belongs to the loop that opened it; each loop has a maximum number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from os import getpid
from time import monotonic
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from ....exceptions import EngineUnavailable
from ...breaker import CircuitBreaker
from .async_pool import AsyncConnectionPool
from .connection import VersionDrop
from .faults import connection_error, explain, is_outage, raise_if_broken
from .handshake import Handshake
from .pool import CONNECT_TIMEOUT, PoolTimeout

#: Seconds for a call if neither the engine nor the client has a timeout: redis-py's default.
DEFAULT_TIMEOUT: Final = 5.0


class AsyncTransport:
    """Transport for event loops.

    max_connections: of one event loop. Other arguments as for Transport; without a deadline the client's
    `socket_timeout` is used instead, and each call tries again.
    """

    def __init__(
        self,
        client: Redis,
        handshake: Handshake,
        max_connections: int,
        deadline: float | None = None,
        probe: Callable[[], tuple[bytes, type]] | None = None,
    ) -> None:
        client_pool = self._client_pool = client.connection_pool
        self._timeout = (
            client_pool.connection_kwargs.get("socket_timeout", DEFAULT_TIMEOUT) if deadline is None else deadline
        )
        self._handshake, self._deadline, self._max_connections, self._probe_call = (
            handshake,
            deadline,
            max_connections,
            probe or handshake.probe,
        )
        self._breaker, self._is_retired = CircuitBreaker(), False
        self.version_drop = VersionDrop(handshake.version_drop)
        self._probing: asyncio.Task[None] | None = None
        self._probed: asyncio.Future[None]
        self._pid, self._was_cut_off = getpid(), False
        self._pools: dict[asyncio.AbstractEventLoop, AsyncConnectionPool] = {}

    async def call(self, packed: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        """Send one packed call and read its reply. A call whose reply was lost is not sent again.

        deadline_at: as for Transport. kind: of the reply; a script's is a list.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or await self._add_loop(loop)
        left = self._timeout if deadline_at is None else deadline_at - monotonic()
        loop_deadline = None if left is None else loop.time() + left
        if self._breaker.is_open and not await self._probe_if_cut_off(pool, loop_deadline):
            raise EngineUnavailable(self._breaker.reason())
        try:
            connection = pool.try_acquire() or await pool.acquire(loop_deadline)
            try:
                reply = await connection.call(packed, loop_deadline)
                if type(reply) is not kind:
                    if isinstance(reply, NoScriptError):  # nothing was run: a restart, a flush, a promoted replica
                        reply = await connection.call_after_script_load(packed, loop_deadline, self.version_drop)
                    raise_if_broken(reply, kind)
            except BaseException:  # a cancelled task leaves a reply unread
                pool.discard(connection)
                raise
        except (RedisError, OSError) as error:
            raise self._report_failure(pool, error) from error
        pool.release(connection)
        if self._breaker.failures:
            self._breaker.succeed()
        if type(reply) is not kind:
            raise EngineUnavailable(f"Redis did not decide: {explain(reply)}") from reply
        return reply

    async def pipeline(self, packed: bytes, replies: int) -> list[Any]:
        """Send several calls at once and return this number of replies, which may be exceptions.

        An outage raises as in `call`, but calls before and after it may have run.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or await self._add_loop(loop)
        loop_deadline = None if self._timeout is None else loop.time() + self._timeout
        if self._breaker.is_open and not await self._probe_if_cut_off(pool, loop_deadline):
            raise EngineUnavailable(self._breaker.reason())
        try:
            connection = pool.try_acquire() or await pool.acquire(loop_deadline)
            try:
                received = await connection.call_all(packed, replies, loop_deadline)
                for reply in received:
                    if isinstance(reply, Exception) and is_outage(reply):
                        raise reply
            except BaseException:
                pool.discard(connection)
                raise
        except (RedisError, OSError) as error:
            raise self._report_failure(pool, error) from error
        pool.release(connection)
        self._breaker.succeed()
        return received

    def _report_failure(self, pool: AsyncConnectionPool, error: RedisError | OSError) -> EngineUnavailable:
        """Record the failure and return the exception to raise."""
        if (
            self._deadline is not None
            and not isinstance(error, PoolTimeout)
            and self._breaker.fail(connection_error(error))
        ):
            pool.close_idle()  # idle connections may be lost, too
            self._start_probing(pool)
        return EngineUnavailable(f"Redis did not decide: {explain(error)}")

    @property
    def is_open(self) -> bool:
        """True if calls to the server are stopped at present."""
        return self._breaker.is_open

    def drop_idle(self) -> None:
        """Close the idle connections of this loop, after one of them has returned an invalid reply."""
        pool = self._pools.get(asyncio.get_running_loop())
        if pool is not None:
            pool.close_idle()

    def retire(self) -> None:
        """Retire the breakers of all event loops."""
        self._is_retired = True
        self._breaker.retire()

    async def aclose(self) -> None:
        """Close the idle connections of this event loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close_with_loop.aclose()

    async def _add_loop(self, loop: asyncio.AbstractEventLoop) -> AsyncConnectionPool:
        for ended in [other for other in list(self._pools) if other.is_closed()]:
            self._pools.pop(ended, None)
        pool = self._pools[loop] = AsyncConnectionPool(
            loop, self._client_pool, self._handshake, self._max_connections, self._deadline
        )
        await anext(pool.close_with_loop)
        return pool

    async def _probe_if_cut_off(self, pool: AsyncConnectionPool, loop_deadline: float | None) -> bool:
        """Start probing the server if needed. If event loops end too soon for that, wait for the probe in this call."""
        probed = self._start_probing(pool)
        ours = probed.get_loop() is pool.loop
        if self._was_cut_off and ours and loop_deadline is not None and not self._breaker.next_probe_in():
            await asyncio.wait([probed], timeout=max(loop_deadline - pool.loop.time(), 0))
        return not self._breaker.is_open

    def _start_probing(self, pool: AsyncConnectionPool) -> asyncio.Future[None]:
        """Return a future that is done after the next probe."""
        probing, ours = self._probing, self._pid == getpid()
        if probing is None or probing.done() or not probing.get_loop().is_running() or not ours:
            # If it has ended while it was needed, the end of its event loop cancelled it. Its loop may also be stopped.
            self._was_cut_off, self._pid = probing is not None and ours, getpid()
            self._probed = pool.loop.create_future()
            self._probing = pool.spawn(self._probe_until_closed(pool))
        return self._probed

    async def _probe_until_closed(self, pool: AsyncConnectionPool) -> None:
        while self._breaker.is_open and not self._is_retired:
            await asyncio.sleep(self._breaker.next_probe_in())
            probed, self._probed = self._probed, pool.loop.create_future()
            try:
                await self._probe_once(pool)
            except Exception as error:  # see `connect`
                self._breaker.fail_probe(connection_error(error))
            probed.set_result(None)
        self._probing = None

    async def _probe_once(self, pool: AsyncConnectionPool) -> None:
        connection = pool.try_acquire() or await pool.connect()
        try:
            call, kind = self._probe_call()
            loop_deadline = pool.loop.time() + (self._timeout or CONNECT_TIMEOUT)
            reply = await connection.call(call, loop_deadline)
            if isinstance(reply, NoScriptError):
                reply = await connection.call_after_script_load(call, loop_deadline, self.version_drop)
            raise_if_broken(reply, kind)
        except BaseException:
            pool.discard(connection)
            raise
        self._breaker.close()
        pool.release(connection)
