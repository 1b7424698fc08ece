"""What the request path waits for, in a thread or on an event loop; and what it does for requests of no caller.

The path is written once, as coroutines that await an `IO`. `ThreadIO` never suspends, so `run_sync` gets the result of
a coroutine at once.
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
from ..engine.base import Charge, Verdict, Version, leases, mark_refunded
from ..engine.call import Call
from ..engine.coroutines import shielded
from ..engine.memory import MemoryEngine
from ..identity import Identity
from ..rules.ruleset import RuleSet
from ..values.access import AccessList

T = TypeVar("T")

sleep = time.sleep
asleep = asyncio.sleep


class IO(Protocol):
    """Everything that the path may wait for."""

    #: False: these are no requests of callers, so the path logs, signals and observes nothing, and stores no lease.
    is_live: bool
    #: The rules and the access entries to decide by; `None` = those in force.
    given: tuple[RuleSet, AccessList] | None

    def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> Awaitable[T]:
        """Call a function that may block only if this process lacks some data.

        On an event loop it raises SynchronousOnlyOperation instead of blocking, as Django's database does; then it is
        called again in a thread. together: tasks of the loop share one such call.
        """

    def read_user(self, identity: Identity) -> Awaitable[None]:
        """Read the user of a request."""

    def check(
        self,
        charges: Call,
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Awaitable[Sequence[Verdict]]:
        """Have the engine decide. If our task is cancelled meanwhile, the new leases end at once."""

    def peek(self, charges: Sequence[Charge], now_us: int | None) -> Awaitable[Sequence[Verdict]]:
        """Return what the engine would decide."""

    def refund(self, verdicts: Sequence[Verdict]) -> Awaitable[None]:
        """Refund these verdicts."""

    def release(self, verdicts: Sequence[Verdict]) -> Awaitable[None]:
        """End the leases of these verdicts."""

    def reset(self, charges: Sequence[Charge]) -> Awaitable[None]:
        """Delete the counters of these charges."""

    def send(self, signal: Signal, sender: type, **named: Any) -> Awaitable[object]:
        """Send a signal. Exceptions of receivers are logged by Django and not raised."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait."""

    def finish(self, work: Coroutine[Any, Any, object]) -> Awaitable[None]:
        """Await this work. It runs to its end even if our task is cancelled."""


class ThreadIO:
    """Waits in the calling thread; its coroutines never suspend."""

    is_live = True
    given: tuple[RuleSet, AccessList] | None = None

    async def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> T:
        return function(*arguments)

    async def read_user(self, identity: Identity) -> None:
        identity.value("user")

    async def check(
        self,
        charges: Call,
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

    async def reset(self, charges: Sequence[Charge]) -> None:
        get_engine().reset(charges)

    async def send(self, signal: Signal, sender: type, **named: Any) -> None:
        signal.send_robust(sender, **named)

    async def sleep(self, seconds: float) -> None:
        sleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        await work


class LoopIO:
    """Waits without blocking the event loop."""

    is_live = True
    given: tuple[RuleSet, AccessList] | None = None

    async def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> T:
        try:
            return function(*arguments)
        except SynchronousOnlyOperation:
            pass
        if not together:
            return await sync_to_async(function)(*arguments)
        async with _lock_of_this_loop():
            try:
                return function(*arguments)  # the task that held the lock has just loaded the data
            except SynchronousOnlyOperation:
                return await sync_to_async(function)(*arguments)

    async def read_user(self, identity: Identity) -> None:
        await identity.read_user()

    async def check(
        self,
        charges: Call,
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        try:
            engine = get_async_engine()
        except SynchronousOnlyOperation:
            engine = await _engine()
        deciding = engine.check(charges, version=version, refund_if_denied=receipts, now_us=now_us)
        if not charges.template.takes_leases:
            return await deciding  # type: ignore[no-any-return]
        taking = asyncio.ensure_future(deciding)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(Exception):  # its exceptions do not matter, because the task is cancelled
                await shielded(_end_leases(engine, taking))
            raise

    async def peek(self, charges: Sequence[Charge], now_us: int | None) -> Sequence[Verdict]:
        return await (await _engine()).peek(charges, now_us=now_us)  # type: ignore[no-any-return]

    async def refund(self, verdicts: Sequence[Verdict]) -> None:
        await (await _engine()).refund(verdicts)

    async def release(self, verdicts: Sequence[Verdict]) -> None:
        await (await _engine()).release(verdicts)

    async def reset(self, charges: Sequence[Charge]) -> None:
        await (await _engine()).reset(charges)

    async def send(self, signal: Signal, sender: type, **named: Any) -> None:
        await signal.asend_robust(sender, **named)  # calls synchronous receivers in a thread

    async def sleep(self, seconds: float) -> None:
        await asleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        await shielded(work)


class TrialIO:
    """Charges nothing. The path logs, signals and observes nothing of a trial, and stores no lease.

    `limiter.peek` uses it, and `inspection/entry_points.py` to explain a request. waiting: how it waits. The rules are
    those that the process knows; no version is compared here.
    """

    is_live = False
    given: tuple[RuleSet, AccessList] | None = None

    def __init__(self, waiting: IO) -> None:
        self._waiting = waiting
        self.look_up, self.read_user, self.finish = waiting.look_up, waiting.read_user, waiting.finish

    async def check(
        self,
        charges: Call,
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        return await self._waiting.peek(charges, now_us)

    async def peek(self, charges: Sequence[Charge], now_us: int | None) -> Sequence[Verdict]:
        return await self._waiting.peek(charges, now_us)

    async def refund(self, verdicts: Sequence[Verdict]) -> None:
        mark_refunded(verdicts)

    async def release(self, verdicts: Sequence[Verdict]) -> None:
        pass

    async def reset(self, charges: Sequence[Charge]) -> None:
        pass

    async def send(self, signal: Signal, sender: type, **named: Any) -> None:
        pass

    async def sleep(self, seconds: float) -> None:
        pass

    def note_outage(self, charges: Sequence[Any], error: Exception) -> None:
        """Called with the `RuleCharge`s that the failure policies decide, and the reason."""


class ClockIO(ThreadIO):
    """Decides by the given rules, with its own engine, at the time that its owner sets: `forecast/logs/` replays so."""

    is_live = False

    def __init__(self, rules: RuleSet, entries: AccessList, engine: MemoryEngine) -> None:
        self.given = rules, entries
        self.engine = engine
        #: Microseconds since the Unix epoch.
        self.now_us = 0

    async def check(
        self,
        charges: Call,
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        return self.engine.check(charges, refund_if_denied=receipts, now_us=self.now_us)

    async def peek(self, charges: Sequence[Charge], now_us: int | None) -> Sequence[Verdict]:
        return self.engine.peek(charges, self.now_us)

    async def refund(self, verdicts: Sequence[Verdict]) -> None:
        self.engine.refund(verdicts)

    async def release(self, verdicts: Sequence[Verdict]) -> None:
        self.engine.release(verdicts)

    async def reset(self, charges: Sequence[Charge]) -> None:
        self.engine.reset(charges)


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
        for ended in [other for other in list(_locks) if other.is_closed()]:  # their locks may keep references to them
            _locks.pop(ended, None)
    return _locks.setdefault(loop, asyncio.Lock())
