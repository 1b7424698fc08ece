"""Reads that requests wait for: one thread reads the database for all, and nobody waits without a bound.

An event loop calls what may block in a thread. Coroutines of the project's code are left to the loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from threading import Condition, Thread
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from .. import backend
from ..conf import settings
from ..engine.locks import freed_by_fork

#: Seconds that requests wait for a database that does not answer: once, until it has answered.
PATIENCE: Final = 2.0
#: Seconds that a thread with an open connection waits for the read of another thread.
TURN_SECONDS: Final = 0.1
#: Seconds until the next read while the database does not answer; each further pause is twice as long.
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0

Found = TypeVar("Found")

#: Starts a coroutine on an event loop.
Start = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]

#: In a thread whose event loop handles AnswerAwaited: starts coroutines there, `None` = no more; and when it came.
asked_by: Final[ContextVar[tuple[Start | None, float] | None]] = ContextVar("asked_by", default=None)


class _Read(Future[Found]):
    """A read under way."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.process = time.monotonic(), os.getpid()


class Turns:
    """Whose turn it is to read.

    A read runs in a thread of its own, so that requests can leave it behind; its answer counts when it comes. A thread
    reads by itself if only it can, and also if it has a connection: the other thread may wait for such a one.
    """

    def __init__(self) -> None:
        self._changed: Final = freed_by_fork(Condition())  # never held during a read
        self._reads: list[_Read[Any]] = []

    @property
    def is_hanging(self) -> bool:
        """True if the database has not answered within PATIENCE, and not since."""
        return bool(reads := self._reads) and time.monotonic() - reads[0].began >= PATIENCE

    def take(
        self,
        database: str,
        read: Callable[[], Found],
        found: Callable[[], Found | None],
        after: Callable[[], object],
        *,
        apart: bool,
    ) -> Found | None:
        """Return what `found` returns once it is not `None`, or what `read` returns; `None` = neither came in time.

        after: called in another thread that has read, when the others go on. apart: do not read in this thread, unless
        only it can.
        """
        connection, reads, changed = connections[database], self._reads, self._changed
        is_bound = _is_bound(connection)
        here = is_bound or (not apart and connection.connection is not None)

        def may_go_on() -> bool:
            return not reads or found() is not None

        with changed:
            reads[:] = [each for each in reads if each.process == os.getpid()]  # a fork has none of the threads
            if here and len(reads) == 1:
                changed.wait_for(may_go_on, TURN_SECONDS)
            if len(reads) > (1 if here else 0):
                changed.wait_for(may_go_on, reads[0].began + PATIENCE - time.monotonic())
            if (known := found()) is not None:
                return known
            here = is_bound or (here and not self.is_hanging)
            if reads and not (is_bound or (here and len(reads) == 1) or self._is_due_again()):
                return None
            wait = 0 if self.is_hanging else PATIENCE
            mine = _Read[Found]()
            reads.append(mine)
        try:
            if not here:
                Thread(target=self._run, args=(mine, read, after), name="ratelimiter-read", daemon=True).start()
        except RuntimeError:  # no more threads available, or the process is ending
            here = True
        if here:
            self._run(mine, read)
        else:
            with changed:
                changed.wait_for(lambda: mine.done() or found() is not None, wait)
        return mine.result() if mine.done() else found()

    def _is_due_again(self) -> bool:
        """Return whether to ask a hanging database once more. Reads that it never answers become rare."""
        pause = min(FIRST_PAUSE * 2 ** len(self._reads), MAX_PAUSE)
        return self.is_hanging and time.monotonic() - self._reads[-1].began >= pause

    def _run(self, mine: _Read[Found], read: Callable[[], Found], after: Callable[[], object] | None = None) -> None:
        try:
            tell = partial(mine.set_result, read())
        except BaseException as error:  # whoever waits raises it
            tell = partial(mine.set_exception, error)
        try:
            if after is not None:
                connections.close_all()
        finally:
            with self._changed:
                tell()  # here, so that an answered read is never among those under way
                if mine in self._reads:  # those before it have missed this answer, so nobody waits for theirs
                    del self._reads[: 1 + self._reads.index(mine)]
                self._changed.notify_all()
        if after is not None and mine.exception() is None:
            after()
            connections.close_all()


def _is_bound(connection: Any) -> bool:
    """Return whether only this thread sees the data: in an open transaction, a database in memory, or tests."""
    return connection.in_atomic_block or backend.are_tests_running() or getattr(connection, "is_in_memory_db", bool)()


#: Of all reads of rules and access entries.
turns: Final = Turns()


class AnswerAwaited(SynchronousOnlyOperation):
    """Raised in a thread of an event loop, which can await this call instead, for `seconds`; `None` = until it ends."""

    def __init__(self, call: Future[None], seconds: float | None) -> None:
        super().__init__("An answer of the project's code has to be awaited; `limiter.acheck` does it.")
        self.call = call
        self.seconds = seconds


async def look_up(function: Callable[..., Found], *arguments: Any, together: bool) -> Found:
    """Call a function that raises SynchronousOnlyOperation instead of blocking; then again in a thread.

    together: tasks of the loop share one such call, if it ends before the deadline.
    """
    try:
        return function(*arguments)
    except SynchronousOnlyOperation:
        pass
    if not together:
        return await _in_thread(function, *arguments)
    async with AsyncExitStack() as stack:
        with suppress(TimeoutError):  # the task that has the lock may be waiting for what this one has
            async with asyncio.timeout(settings.DEADLINE_MS / 1_000):
                await stack.enter_async_context(_lock_of_this_loop())
        try:
            return function(*arguments)  # the task that held the lock has just loaded the data
        except SynchronousOnlyOperation:
            return await _in_thread(function, *arguments)


async def _in_thread(function: Callable[..., Found], *arguments: Any) -> Found:
    """Call the function in a thread; again if an answer of the project's code had to be awaited first."""
    start = partial(copy_context().run, asyncio.run_coroutine_threadsafe, loop=asyncio.get_running_loop())
    came = time.monotonic()
    try:
        return await _asked_by((start, came), function, *arguments)
    except AnswerAwaited as awaited:
        await asyncio.wait([asyncio.wrap_future(awaited.call)], timeout=awaited.seconds)
    return await _asked_by((None, came), function, *arguments)


async def _asked_by(by: tuple[Start | None, float], function: Callable[..., Found], *arguments: Any) -> Found:
    token = asked_by.set(by)
    try:
        return await sync_to_async(function)(*arguments)
    finally:
        asked_by.reset(token)


_locks: Final[dict[asyncio.AbstractEventLoop, asyncio.Lock]] = {}


def _lock_of_this_loop() -> asyncio.Lock:
    loop = asyncio.get_running_loop()
    if loop not in _locks:
        for ended in [other for other in list(_locks) if other.is_closed()]:  # their locks may keep references to them
            _locks.pop(ended, None)
    return _locks.setdefault(loop, asyncio.Lock())
