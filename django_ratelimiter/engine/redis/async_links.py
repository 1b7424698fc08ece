"""The connections of event loops. One belongs to the loop that it was made on, and each loop has a bounded number."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from os import getpid
from time import monotonic
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as TooLate

from ...exceptions import EngineUnavailable
from ..resilience import Breaker
from .async_wires import AsyncWire, connect, within
from .stock import CONNECT_SECONDS
from .wires import LOAD, PING, is_outage, raise_if_broken

#: Seconds that a call may wait where neither the engine nor the client's options say anything; what redis-py says.
DEFAULT_SECONDS: Final = 5.0


#: Connections that one event loop makes at the same time; with TLS each takes a while of computing.
MOST_AT_ONCE: Final = 4


class AsyncLinks:
    """As Links, for event loops.

    most: connections of one event loop. The rest is as for Links; without a deadline the client's `socket_timeout`
    stands in for it, and each call tries anew.
    """

    def __init__(self, client: Redis, most: int, deadline: float | None = None, probe: bytes = PING) -> None:
        pool = self._pool = client.connection_pool
        self._patience = pool.connection_kwargs.get("socket_timeout", DEFAULT_SECONDS) if deadline is None else deadline
        self._deadline, self._most, self._probe = deadline, most, probe
        self._breaker = Breaker()
        self._probing: asyncio.Task[None] | None = None
        self._attempted: asyncio.Future[None]
        self._pid, self._cut_off = getpid(), False
        self._loops: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

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
                        reply = await wire.ask_loading(packed, at)
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
            raise EngineUnavailable(f"Redis gave no decision: {reply}") from reply
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

    def _failed(self, kept: _OfLoop, error: RedisError | OSError) -> EngineUnavailable:
        """What to raise, after the failure was noted."""
        if self._deadline is not None and not isinstance(error, _Crowded) and self._breaker.fail(error):
            kept.hang_up()  # what is idle may be as lost
            self._see_to_probe(kept)
        return EngineUnavailable(f"Redis gave no decision: {error}")

    @property
    def is_open(self) -> bool:
        """Whether the server is not asked at present."""
        return self._breaker.is_open

    def distrust(self) -> None:
        """Close what is idle here: one of these connections has just given a reply that is none."""
        kept = self._loops.get(asyncio.get_running_loop())
        if kept is not None:
            kept.hang_up()

    async def close(self) -> None:
        """Close the idle connections of this event loop."""
        kept = self._loops.pop(asyncio.get_running_loop(), None)
        if kept is not None:
            await kept.until_shutdown.aclose()

    async def _begin(self, loop: asyncio.AbstractEventLoop) -> _OfLoop:
        for ended in [other for other in list(self._loops) if other.is_closed()]:
            self._loops.pop(ended, None)
        kept = self._loops[loop] = _OfLoop(loop, self._pool, self._most, self._deadline)
        await anext(kept.until_shutdown)
        return kept

    async def _is_closed_now(self, kept: _OfLoop, at: float | None) -> bool:
        """See to it that the server is probed. Where event loops end too soon for that, wait for it in this call."""
        attempted = self._see_to_probe(kept)
        ours = attempted.get_loop() is kept.loop
        if self._cut_off and ours and at is not None and not self._breaker.next_probe_in():
            await asyncio.wait([attempted], timeout=max(at - kept.loop.time(), 0))
        return not self._breaker.is_open

    def _see_to_probe(self, kept: _OfLoop) -> asyncio.Future[None]:
        """What is done when the server has been probed the next time."""
        probing, ours = self._probing, self._pid == getpid()
        if probing is None or probing.done() or not probing.get_loop().is_running() or not ours:
            # One that ended while it was needed was cut off by the end of its event loop; it may stand still, too.
            self._cut_off, self._pid = probing is not None and ours, getpid()
            self._attempted = kept.loop.create_future()
            self._probing = kept.begin(self._probe_until_closed(kept))
        return self._attempted

    async def _probe_until_closed(self, kept: _OfLoop) -> None:
        while self._breaker.is_open:
            await asyncio.sleep(self._breaker.next_probe_in())
            attempted, self._attempted = self._attempted, kept.loop.create_future()
            try:
                await self._probe_once(kept)
            except Exception as error:  # see `connect`
                self._breaker.fail_probe(error)
            attempted.set_result(None)
        self._probing = None

    async def _probe_once(self, kept: _OfLoop) -> None:
        wire = kept.take() or await kept.connect()
        try:
            reply = await wire.ask(self._probe, kept.loop.time() + (self._patience or CONNECT_SECONDS))
            if isinstance(reply, Exception) and is_outage(reply):
                raise reply
        except BaseException:
            kept.drop(wire)
            raise
        self._breaker.close()
        kept.give_back(wire)


class _Crowded(TooLate):
    """There was no connection in time, but others are at work: whether the server fails, they will tell."""


class _OfLoop:
    """What one event loop has: idle connections, calls that wait for one, and tasks that see to that.

    until_shutdown: once begun it is closed by the event loop's own end, as every asynchronous generator, and closes
    the connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Any, most: int, deadline: float | None) -> None:
        self.loop, self.until_shutdown = loop, self._closing_at_the_end()
        self._pool, self._most, self._deadline = pool, most, deadline
        self._idle: deque[AsyncWire] = deque()
        self._waiting: dict[asyncio.Future[AsyncWire], None] = {}  # in the order of their coming
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = self._out = 0
        self._round_trip = 0.0

    def take(self) -> AsyncWire | None:
        """An idle connection that is sound."""
        while self._idle:
            wire = self._idle.pop()
            if wire.is_sound:
                self._out += 1
                return wire
            wire.hang_up()  # closed by the server, or with something unread on it
        return None

    async def wait(self, at: float | None) -> AsyncWire:
        """A connection, as soon as there is one. Raises what connecting has raised, or TimeoutError."""
        waiting = self.loop.create_future()
        self._waiting[waiting] = None
        self._connect_if_needed()
        try:
            wire: AsyncWire = await within(self.loop, waiting, at)
        except TooLate as error:
            if self._out:
                raise _Crowded("All connections were at work until the deadline.") from error
            raise
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self.give_back(waiting.result())
            raise
        finally:
            self._waiting.pop(waiting, None)
        if at is not None and at - self.loop.time() < self._round_trip:
            self.give_back(wire)  # too late for a reply: it is better kept for others
            raise TooLate("No connection within the deadline.")
        return wire

    def give_back(self, wire: AsyncWire) -> None:
        """Take back a connection whose call has been answered, unless more has arrived than that."""
        if not wire.is_sound:
            return self.drop(wire)
        self._out -= 1
        self.offer(wire)

    def drop(self, wire: AsyncWire) -> None:
        """Close a connection that is of no use any more."""
        self._out -= 1
        wire.hang_up()
        self._connect_if_needed()

    def offer(self, wire: AsyncWire) -> None:
        """Give a connection to the call that has waited longest, or keep it."""
        while self._waiting:
            waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            if not waiting.done():
                self._out += 1
                waiting.set_result(wire)
                return
        self._idle.append(wire)

    def hang_up(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().hang_up()

    def begin(self, work: Any) -> asyncio.Task[None]:
        """A task that no request's end takes with it."""
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)  # the event loop itself would not keep it alive
        task.add_done_callback(self._tasks.discard)
        return task

    async def connect(self) -> AsyncWire:
        """One more connection, which counts as at work. What takes longer than a call may wait belongs in a task."""
        wire = await connect(self._pool, None if self._deadline is None else CONNECT_SECONDS)
        try:
            await self._load_script(wire)
        except BaseException:
            wire.hang_up()
            raise
        self._out += 1
        return wire

    async def _load_script(self, wire: AsyncWire) -> None:
        if self._deadline is None:
            return  # NOSCRIPT tells in time
        began = self.loop.time()
        reply = await wire.ask(LOAD, began + CONNECT_SECONDS)
        if isinstance(reply, Exception) and is_outage(reply):
            raise reply
        self._round_trip = min(self.loop.time() - began, self._deadline / 2)

    def _connect_if_needed(self) -> None:
        while self._connecting < min(len(self._waiting), MOST_AT_ONCE, self._most - self._out):
            self._connecting += 1
            self.begin(self._connect_for_others())

    async def _connect_for_others(self) -> None:
        """However long the call that wanted it still waits."""
        try:
            wire = await self.connect()
        except Exception as error:
            if self._connecting == 1 and not self._out:
                self._tell_all_that_wait(error)
            self._connecting -= 1
        else:
            self._connecting -= 1
            self.give_back(wire)
            self._connect_if_needed()

    def _tell_all_that_wait(self, error: Exception) -> None:
        """That there is no connection to be had, nor one at work that could come back."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            if not each.done():
                lost = LostError(str(error))
                lost.__cause__ = error
                each.set_exception(lost)

    async def _closing_at_the_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            for task in list(self._tasks):
                task.cancel()
            while self._idle:
                await self._idle.pop().close()
