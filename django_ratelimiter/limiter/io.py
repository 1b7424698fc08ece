"""The two ways to go a path that has to wait: in a thread of its own, or on an event loop, which it must not block.

A path is a generator, and so is written once. It yields each step that may wait, and is sent what the step gives, or
has what it raises thrown in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from ..backend import get_async_engine, get_engine
from ..engine.base import Charge, Verdict, Version, leases
from ..engine.shielding import shielded

T = TypeVar("T")


class Step(Protocol):
    """Something to do that may have to wait."""

    def take(self) -> Any:
        """Do it, waiting in this thread."""

    async def atake(self) -> Any:
        """Do it without blocking the event loop."""


Path = Generator[Step, Any, T]


def go(path: Path[T]) -> T:
    """Go the path in this thread; what it returns."""
    turn, given = path.send, None
    while True:
        try:
            step = turn(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            turn, given = path.send, step.take()
        except Exception as error:
            turn, given = path.throw, error


async def ago(path: Path[T]) -> T:
    """The same on an event loop."""
    turn, given = path.send, None
    while True:
        try:
            step = turn(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            turn, given = path.send, await step.atake()
        except Exception as error:
            turn, given = path.throw, error


class Lookup:
    """A call that waits only if this process does not know the answer yet.

    function: raises SynchronousOnlyOperation on an event loop rather than wait, as Django's database does; it is then
    called anew in a thread. together: what one task is waiting for, other tasks of the event loop wait for as well.
    """

    __slots__ = ("_arguments", "_function", "_together")

    def __init__(self, function: Callable[..., Any], *arguments: Any, together: bool = False) -> None:
        self._function, self._arguments, self._together = function, arguments, together

    def take(self) -> Any:
        return self._function(*self._arguments)

    async def atake(self) -> Any:
        try:
            return self.take()
        except SynchronousOnlyOperation:
            pass
        if not self._together:
            return await sync_to_async(self.take)()
        async with _lock_of_this_loop():
            try:
                return self.take()  # the task that held the lock has just seen to it
            except SynchronousOnlyOperation:
                return await sync_to_async(self.take)()


class Asking:
    """A call of the engine's method of this name."""

    __slots__ = ("_arguments", "_method", "_options")

    def __init__(self, method: str, *arguments: Any, **options: Any) -> None:
        self._method, self._arguments, self._options = method, arguments, options

    def take(self) -> Any:
        return getattr(get_engine(), self._method)(*self._arguments, **self._options)

    async def atake(self) -> Any:
        try:
            engine = get_async_engine()
        except SynchronousOnlyOperation:
            engine = await sync_to_async(get_async_engine)()
        return await getattr(engine, self._method)(*self._arguments, **self._options)


class Spending:
    """The engine's `check` of these charges. Leases that it takes end at once if our task is cancelled meanwhile.

    version: `None` = the engine compares none.
    """

    __slots__ = ("_charges", "_now_us", "_receipts", "_version")

    def __init__(
        self, charges: Sequence[Charge], version: Version | None, receipts: Sequence[Verdict], now_us: int | None
    ) -> None:
        self._charges, self._version, self._receipts, self._now_us = charges, version, receipts, now_us

    def take(self) -> Any:
        return get_engine().check(
            self._charges, version=self._version, refund_if_denied=self._receipts, now_us=self._now_us
        )

    async def atake(self) -> Any:
        asking = Asking(
            "check", self._charges, version=self._version, refund_if_denied=self._receipts, now_us=self._now_us
        )
        if not any(charge.limit.holds_leases for charge in self._charges):
            return await asking.atake()
        taking = asyncio.ensure_future(asking.atake())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await shielded(_end_leases(taking))
            raise


async def _end_leases(taking: asyncio.Future[list[Verdict]]) -> None:
    await asyncio.wait([taking])
    if taking.exception() is None:
        await get_async_engine().release(leases(taking.result()))


_locks: Final[dict[asyncio.AbstractEventLoop, asyncio.Lock]] = {}


def _lock_of_this_loop() -> asyncio.Lock:
    loop = asyncio.get_running_loop()
    if loop not in _locks:
        for ended in [other for other in list(_locks) if other.is_closed()]:  # which their locks may hold
            _locks.pop(ended, None)
    return _locks.setdefault(loop, asyncio.Lock())
