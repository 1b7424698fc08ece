"""The two ways to wait on the path of a request: in a thread of its own, or without blocking an event loop.

The path is written once, as coroutines over an `IO`. That of a thread never suspends, so `run_sync` gets its result at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.dispatch import Signal

from ..backend import get_async_engine, get_engine
from ..engine.base import Charge, Verdict, Version, leases
from ..engine.coroutines import shielded
from ..engine.templates import FilledCharges
from ..identity import Identity

T = TypeVar("T")

sleep = time.sleep
asleep = asyncio.sleep


class IO(Protocol):
    """What the path waits for."""

    def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> Awaitable[T]:
        """Call a function that waits only for what this process does not know yet.

        On an event loop it raises SynchronousOnlyOperation rather than wait, as Django's database does; it is then
        called again in a thread. together: what one task is waiting for, other tasks of the loop wait for as well.
        """

    def read_user(self, identity: Identity) -> Awaitable[None]:
        """Have the user of a request read."""

    def check(
        self,
        charges: Sequence[Charge],
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Awaitable[Sequence[Verdict]]:
        """Have the engine decide. Leases that it takes end at once if our task is cancelled meanwhile."""

    def peek(self, charges: Sequence[Charge], now_us: int | None) -> Awaitable[Sequence[Verdict]]:
        """Ask the engine what it would decide."""

    def refund(self, verdicts: Sequence[Verdict]) -> Awaitable[None]:
        """Have the engine take back what these verdicts spent."""

    def release(self, verdicts: Sequence[Verdict]) -> Awaitable[None]:
        """Have the engine end the leases of these verdicts."""

    def send(self, signal: Signal, sender: type, **named: Any) -> Awaitable[object]:
        """Send a signal. What a receiver raises is logged by Django and goes no further."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait."""

    def finish(self, work: Coroutine[Any, Any, object]) -> Awaitable[None]:
        """Await this work, and let it go on to its end even if our task is cancelled."""


class ThreadIO:
    """Waits in this thread; its coroutines never suspend."""

    async def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> T:
        return function(*arguments)

    async def read_user(self, identity: Identity) -> None:
        identity.value("user")

    async def check(
        self,
        charges: Sequence[Charge],
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        return get_engine().check(charges, version=version, refund_if_denied=receipts, now_us=now_us)

    async def peek(self, charges: Sequence[Charge], now_us: int | None) -> Sequence[Verdict]:
        return get_engine().peek(charges, now_us=now_us)

    async def refund(self, verdicts: Sequence[Verdict]) -> None:
        get_engine().refund(verdicts)

    async def release(self, verdicts: Sequence[Verdict]) -> None:
        get_engine().release(verdicts)

    async def send(self, signal: Signal, sender: type, **named: Any) -> None:
        signal.send_robust(sender, **named)

    async def sleep(self, seconds: float) -> None:
        sleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        await work


class LoopIO:
    """Waits without blocking the event loop."""

    async def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> T:
        try:
            return function(*arguments)
        except SynchronousOnlyOperation:
            pass
        if not together:
            return await sync_to_async(function)(*arguments)
        async with _lock_of_this_loop():
            try:
                return function(*arguments)  # the task that held the lock has just seen to it
            except SynchronousOnlyOperation:
                return await sync_to_async(function)(*arguments)

    async def read_user(self, identity: Identity) -> None:
        await identity.read_user()

    async def check(
        self,
        charges: Sequence[Charge],
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        try:
            engine = get_async_engine()
        except SynchronousOnlyOperation:
            engine = await _engine()
        deciding = engine.check(charges, version=version, refund_if_denied=receipts, now_us=now_us)
        if isinstance(charges, FilledCharges):
            takes_leases = charges.template.takes_leases
        else:
            takes_leases = any(charge.limit.holds_leases for charge in charges)
        if not takes_leases:
            return await deciding  # type: ignore[no-any-return]
        taking = asyncio.ensure_future(deciding)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(Exception):  # whatever comes of that, it is cancelled
                await shielded(_end_leases(engine, taking))
            raise

    async def peek(self, charges: Sequence[Charge], now_us: int | None) -> Sequence[Verdict]:
        return await (await _engine()).peek(charges, now_us=now_us)  # type: ignore[no-any-return]

    async def refund(self, verdicts: Sequence[Verdict]) -> None:
        await (await _engine()).refund(verdicts)

    async def release(self, verdicts: Sequence[Verdict]) -> None:
        await (await _engine()).release(verdicts)

    async def send(self, signal: Signal, sender: type, **named: Any) -> None:
        await signal.asend_robust(sender, **named)  # which calls synchronous receivers in a thread

    async def sleep(self, seconds: float) -> None:
        await asleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        await shielded(work)


THREAD: Final = ThreadIO()
LOOP: Final = LoopIO()


async def _engine() -> Any:
    try:
        return get_async_engine()
    except SynchronousOnlyOperation:
        return await sync_to_async(get_async_engine)()


async def _end_leases(engine: Any, taking: asyncio.Future[Sequence[Verdict]]) -> None:
    await asyncio.wait([taking])
    if taking.exception() is None:
        await engine.release(leases(taking.result()))


_locks: Final[dict[asyncio.AbstractEventLoop, asyncio.Lock]] = {}


def _lock_of_this_loop() -> asyncio.Lock:
    loop = asyncio.get_running_loop()
    if loop not in _locks:
        for ended in [other for other in list(_locks) if other.is_closed()]:  # which their locks may hold
            _locks.pop(ended, None)
    return _locks.setdefault(loop, asyncio.Lock())
