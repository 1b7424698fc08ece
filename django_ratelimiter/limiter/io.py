"""What the request path waits for, in a thread or on an event loop; and what it does for requests of no caller.

The path is written once, as coroutines that await an `IO`. That of threads never suspends, so `run_sync` gets the
result of a coroutine at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.dispatch import Signal

from ..backend import get_async_engine, get_engine
from ..engine.base import Verdict, Version, leases, mark_refunded
from ..engine.call import Call
from ..engine.coroutines import ImmediateAdapter, shielded
from ..identity import Identity
from ..rules.reading import asked_by, look_up

T = TypeVar("T")
Verdicts = Sequence[Verdict]

sleep: Callable[[float], None] = time.sleep
asleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class IO:
    """Everything that the path may wait for. This one waits in the calling thread."""

    #: False: these are no requests of callers, so the path logs, signals and observes nothing, and stores no lease.
    is_live = True

    async def engine(self) -> Any:
        """Return the engine; its methods are awaited."""
        return ImmediateAdapter(get_engine())

    async def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> T:
        """Call a function that may block only if this process lacks some data.

        On an event loop it raises SynchronousOnlyOperation instead of blocking, as Django's database does; then it is
        called again in a thread. together: tasks of the loop share one such call.
        """
        asked_by.set(None)  # the project's code may use the limiter in a thread that an event loop waits for
        return function(*arguments)

    async def read_user(self, identity: Identity) -> None:
        """Read the user of a request."""
        identity.value("user")

    async def check(
        self, charges: Call, version: Version | None = None, receipts: Verdicts = (), now_us: int | None = None
    ) -> Verdicts:
        """Have the engine decide. If our task is cancelled meanwhile, the new leases end at once."""
        return get_engine().check(charges, version=version, refund_if_denied=receipts, now_us=now_us)

    async def refund(self, verdicts: Verdicts) -> None:
        """Refund these verdicts."""
        await (await self.engine()).refund(verdicts)

    async def release(self, verdicts: Verdicts) -> None:
        """End the leases of these verdicts."""
        await (await self.engine()).release(verdicts)

    async def send(self, signal: Signal, sender: type, **named: Any) -> None:
        """Send a signal. Exceptions of receivers are logged by Django and not raised."""
        signal.send_robust(sender, **named)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        sleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """Await this work. It runs to its end even if our task is cancelled."""
        await work


class LoopIO(IO):
    """Waits without blocking the event loop."""

    async def engine(self) -> Any:
        try:
            return get_async_engine()
        except SynchronousOnlyOperation:
            return await sync_to_async(get_async_engine)()

    async def look_up(self, function: Callable[..., T], *arguments: Any, together: bool = False) -> T:
        return await look_up(function, *arguments, together=together)

    async def read_user(self, identity: Identity) -> None:
        await identity.read_user()

    async def check(
        self, charges: Call, version: Version | None = None, receipts: Verdicts = (), now_us: int | None = None
    ) -> Verdicts:
        engine = await self.engine()
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

    async def send(self, signal: Signal, sender: type, **named: Any) -> None:
        await signal.asend_robust(sender, **named)  # calls synchronous receivers in a thread

    async def sleep(self, seconds: float) -> None:
        await asleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        await shielded(work)


class TrialIO(IO):
    """Charges nothing. The path logs, signals and observes nothing of a trial, stores no lease, and does not sleep.

    `limiter.peek` uses it, and `inspection/entry_points.py` to explain a request. waiting: how it waits. The rules are
    those that the process knows; no version is compared here.
    """

    is_live = False

    def __init__(self, waiting: IO) -> None:
        self.engine, self.look_up = waiting.engine, waiting.look_up  # type: ignore[method-assign]
        self.read_user, self.finish = waiting.read_user, waiting.finish  # type: ignore[method-assign]

    async def check(
        self, charges: Call, version: Version | None = None, receipts: Verdicts = (), now_us: int | None = None
    ) -> Verdicts:
        return await (await self.engine()).peek(charges, now_us=now_us)  # type: ignore[no-any-return]

    async def refund(self, verdicts: Verdicts) -> None:
        mark_refunded(verdicts)

    def note_outage(self, charges: Call, error: Exception) -> None:
        """Called with the charges that the failure policies decide, and the reason."""


THREAD: Final = IO()
LOOP: Final = LoopIO()


async def _end_leases(engine: Any, taking: asyncio.Future[Sequence[Verdict]]) -> None:
    await asyncio.wait([taking])
    if taking.exception() is None:
        await engine.release(leases(taking.result()))
