"""The connections of event loops. One belongs to the loop that it was made on, and each loop has a bounded number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from os import getpid
from time import monotonic
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from ....exceptions import EngineUnavailable
from ...breaker import Breaker
from .async_pool import AsyncStock
from .connection import Forgetting
from .faults import explained, is_outage, lost, raise_if_broken
from .greeting import Greeting
from .pool import CONNECT_SECONDS, Crowded

#: Seconds that a call may wait where neither the engine nor the client's options say anything; what redis-py says.
DEFAULT_SECONDS: Final = 5.0


class AsyncLinks:
    """As Links, for event loops.

    most: connections of one event loop. The rest is as for Links; without a deadline the client's `socket_timeout`
    stands in for it, and each call tries anew.
    """

    def __init__(
        self,
        client: Redis,
        greeting: Greeting,
        most: int,
        deadline: float | None = None,
        probe: Callable[[], tuple[bytes, type]] | None = None,
    ) -> None:
        pool = self._pool = client.connection_pool
        self._patience = pool.connection_kwargs.get("socket_timeout", DEFAULT_SECONDS) if deadline is None else deadline
        self._greeting, self._deadline, self._most, self._probe = greeting, deadline, most, probe or greeting.probe
        self._breaker, self._is_abandoned = Breaker(), False
        self.forgetting = Forgetting(greeting.forgetting)
        self._probing: asyncio.Task[None] | None = None
        self._attempted: asyncio.Future[None]
        self._pid, self._cut_off = getpid(), False
        self._loops: dict[asyncio.AbstractEventLoop, AsyncStock] = {}

    async def ask(self, packed: bytes, until: float | None = None, kind: type = list) -> Any:
        """Send one packed call and read its reply. A call whose reply was lost is not sent again.

        until: as for Links. kind: of the reply; a script's is a list.
        """
        loop = asyncio.get_running_loop()
        kept = self._loops.get(loop) or await self._begin(loop)
        left = self._patience if until is None else until - monotonic()
        at = None if left is None else loop.time() + left
        if self._breaker.is_open and not await self._is_closed_now(kept, at):
            raise EngineUnavailable(self._breaker.why())
        try:
            wire = kept.take() or await kept.wait(at)
            try:
                reply = await wire.ask(packed, at)
                if type(reply) is not kind:
                    if isinstance(reply, NoScriptError):  # nothing was run: a restart, a flush, a promoted replica
                        reply = await wire.ask_loading(packed, at, self.forgetting)
                    raise_if_broken(reply, kind)
            except BaseException:  # a task that was cancelled leaves a reply unread
                kept.drop(wire)
                raise
        except (RedisError, OSError) as error:
            raise self._failed(kept, error) from error
        kept.give_back(wire)
        if self._breaker.failures:
            self._breaker.succeed()
        if type(reply) is not kind:
            raise EngineUnavailable(f"Redis gave no decision: {explained(reply)}") from reply
        return reply

    async def burst(self, packed: bytes, replies: int) -> list[Any]:
        """Send several calls at once and read so many replies, which may be exceptions.

        An outage raises as in `ask`, after the calls before and behind it were made.
        """
        loop = asyncio.get_running_loop()
        kept = self._loops.get(loop) or await self._begin(loop)
        at = None if self._patience is None else loop.time() + self._patience
        if self._breaker.is_open and not await self._is_closed_now(kept, at):
            raise EngineUnavailable(self._breaker.why())
        try:
            wire = kept.take() or await kept.wait(at)
            try:
                found = await wire.ask_all(packed, replies, at)
                for reply in found:
                    if isinstance(reply, Exception) and is_outage(reply):
                        raise reply
            except BaseException:
                kept.drop(wire)
                raise
        except (RedisError, OSError) as error:
            raise self._failed(kept, error) from error
        kept.give_back(wire)
        self._breaker.succeed()
        return found

    def _failed(self, kept: AsyncStock, error: RedisError | OSError) -> EngineUnavailable:
        """What to raise, after the failure was noted."""
        if self._deadline is not None and not isinstance(error, Crowded) and self._breaker.fail(lost(error)):
            kept.hang_up()  # what is idle may be as lost
            self._see_to_probe(kept)
        return EngineUnavailable(f"Redis gave no decision: {explained(error)}")

    @property
    def is_open(self) -> bool:
        """Whether the server is not asked at present."""
        return self._breaker.is_open

    def distrust(self) -> None:
        """Close what is idle here: one of these connections has just given a reply that is none."""
        kept = self._loops.get(asyncio.get_running_loop())
        if kept is not None:
            kept.hang_up()

    def abandon(self) -> None:
        """As Links.abandon, in every event loop."""
        self._is_abandoned = True
        self._breaker.retire()

    async def close(self) -> None:
        """Close the idle connections of this event loop."""
        kept = self._loops.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.until_shutdown.aclose()

    async def _begin(self, loop: asyncio.AbstractEventLoop) -> AsyncStock:
        for ended in [other for other in list(self._loops) if other.is_closed()]:
            self._loops.pop(ended, None)
        kept = self._loops[loop] = AsyncStock(loop, self._pool, self._greeting, self._most, self._deadline)
        await anext(kept.until_shutdown)
        return kept

    async def _is_closed_now(self, kept: AsyncStock, at: float | None) -> bool:
        """See to it that the server is probed. Where event loops end too soon for that, wait for it in this call."""
        attempted = self._see_to_probe(kept)
        ours = attempted.get_loop() is kept.loop
        if self._cut_off and ours and at is not None and not self._breaker.next_probe_in():
            await asyncio.wait([attempted], timeout=max(at - kept.loop.time(), 0))
        return not self._breaker.is_open

    def _see_to_probe(self, kept: AsyncStock) -> asyncio.Future[None]:
        """What is done when the server has been probed the next time."""
        probing, ours = self._probing, self._pid == getpid()
        if probing is None or probing.done() or not probing.get_loop().is_running() or not ours:
            # One that ended while it was needed was cut off by the end of its event loop; it may stand still, too.
            self._cut_off, self._pid = probing is not None and ours, getpid()
            self._attempted = kept.loop.create_future()
            self._probing = kept.begin(self._probe_until_closed(kept))
        return self._attempted

    async def _probe_until_closed(self, kept: AsyncStock) -> None:
        while self._breaker.is_open and not self._is_abandoned:
            await asyncio.sleep(self._breaker.next_probe_in())
            attempted, self._attempted = self._attempted, kept.loop.create_future()
            try:
                await self._probe_once(kept)
            except Exception as error:  # see `connect`
                self._breaker.fail_probe(lost(error))
            attempted.set_result(None)
        self._probing = None

    async def _probe_once(self, kept: AsyncStock) -> None:
        wire = kept.take() or await kept.connect()
        try:
            call, kind = self._probe()
            at = kept.loop.time() + (self._patience or CONNECT_SECONDS)
            reply = await wire.ask(call, at)
            if isinstance(reply, NoScriptError):
                reply = await wire.ask_loading(call, at, self.forgetting)
            raise_if_broken(reply, kind)
        except BaseException:
            kept.drop(wire)
            raise
        self._breaker.close()
        kept.give_back(wire)
