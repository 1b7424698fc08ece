"""The connections of one event loop to one server, and the tasks that make them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Any, Final

from redis.exceptions import TimeoutError as TooLate

from .async_connection import AsyncWire, connect, within
from .faults import lost
from .greeting import Greeting
from .pool import CONNECT_SECONDS, Crowded

#: Connections that one event loop makes at the same time; with TLS each takes a while of computing.
MOST_AT_ONCE: Final = 4


class AsyncStock:
    """What one event loop has: idle connections, calls that wait for one, and tasks that see to that.

    until_shutdown: once begun it is closed by the event loop's own end, as every asynchronous generator, and closes
    the connections.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pool: Any, greeting: Greeting, most: int, deadline: float | None
    ) -> None:
        self.loop, self.until_shutdown = loop, self._closing_at_the_end()
        self._pool, self._greeting, self._most, self._deadline = pool, greeting, most, deadline
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
                raise Crowded("All connections were at work until the deadline.") from error
            raise
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self.give_back(waiting.result())
            raise
        finally:
            self._waiting.pop(waiting, None)
        if at is not None and at - self.loop.time() < self._round_trip:
            self.give_back(wire)  # too late for a reply: it is better kept for others
            raise Crowded("No connection in time for a reply within the deadline.")
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
            if self._deadline is not None:  # without one, NOSCRIPT tells in time
                await self._greet(wire, self._deadline)
        except BaseException:
            wire.hang_up()
            raise
        self._out += 1
        return wire

    async def _greet(self, wire: AsyncWire, deadline: float) -> None:
        steps = self._greeting.steps()
        turn: Any = partial(next, steps)
        with suppress(StopIteration):
            while True:
                burst, began = turn(), self.loop.time()
                turn = partial(steps.send, await wire.ask_all(burst.packed, burst.replies, began + CONNECT_SECONDS))
                self._round_trip = min(self.loop.time() - began, deadline / 2)

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
                each.set_exception(lost(error))

    async def _closing_at_the_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            for task in list(self._tasks):
                task.cancel()
            while self._idle:
                await self._idle.pop().close()
