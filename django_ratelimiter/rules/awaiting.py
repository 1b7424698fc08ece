"""How an event loop calls what may block: in a thread. Coroutines of the project's code are left to the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from ..conf import settings

T = TypeVar("T")

#: Starts a coroutine on an event loop.
Start = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]

#: In a thread whose event loop handles AnswerAwaited: starts coroutines there, `None` = no more; and when it came.
asked_by: Final[ContextVar[tuple[Start | None, float] | None]] = ContextVar("asked_by", default=None)


class AnswerAwaited(SynchronousOnlyOperation):
    """Raised in a thread of an event loop, which can await this call instead, for `seconds`; `None` = until it ends."""

    def __init__(self, call: Future[None], seconds: float | None) -> None:
        super().__init__("An answer of the project's code has to be awaited; `limiter.acheck` does it.")
        self.call = call
        self.seconds = seconds


async def look_up(function: Callable[..., T], *arguments: Any, together: bool) -> T:
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


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call the function in a thread; again if an answer of the project's code had to be awaited first."""
    start = partial(copy_context().run, asyncio.run_coroutine_threadsafe, loop=asyncio.get_running_loop())
    came = time.monotonic()
    try:
        return await _asked_by((start, came), function, *arguments)
    except AnswerAwaited as awaited:
        await asyncio.wait([asyncio.wrap_future(awaited.call)], timeout=awaited.seconds)
    return await _asked_by((None, came), function, *arguments)


async def _asked_by(by: tuple[Start | None, float], function: Callable[..., T], *arguments: Any) -> T:
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
