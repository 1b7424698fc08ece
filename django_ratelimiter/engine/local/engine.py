"""The engine of a process: it decides here if a rule is approximate or a rejection still holds, else on the server.

`LocalFirstEngine` for threads and `AsyncLocalFirstEngine` for event loops share one `LocalCounters`. What calls the
engine is written once, in coroutines; for threads they never suspend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ...exceptions import EngineUnavailable
from ..adapters import ImmediateAdapter, as_async
from ..base import Charge, Verdict, Version
from ..call import Answer, Call
from ..coroutines import run_sync
from .call import LocalCall
from .counter import LocalVerdict, is_local
from .store import LocalCounters
from .sync import NO_CALL, SyncCall, decide


class _LocalFirst:
    """The common part. Other attributes are those of the wrapped engine.

    engine: decides exactly. counters: of this process.
    """

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        self.engine, self.counters = engine, counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def decide(
        self, call: Call, version: int | Version | None, receipts: Sequence[Verdict]
    ) -> Answer | SyncCall | None:
        """Return the answer, or the call to make for it; `None` = ask the engine, and keep nothing of its reply."""
        counters, usage, template = self.counters, self.counters.usage, call.template
        is_due = bool(usage.counts or not usage.buffer.is_empty) and usage.is_due()
        if template.is_synced and not (is_due or receipts):
            with counters.lock:  # of two calls at once, only one is a caller's first
                has_none = counters.partitions.keys().isdisjoint(call.partitions)
                if has_none and not counters.comes_again(call, counters.now()):
                    return None
        is_exact = template.is_exact and not (receipts and any(type(each) is LocalVerdict for each in receipts))
        if call.carried or (is_exact and not (is_due or counters.rejections.seconds)):
            return None
        local, now = LocalCall(call), counters.now()
        with counters.lock:
            found = decide(counters, local, version, receipts, now)
        if found is None:
            return SyncCall(counters, local, version, receipts, now, is_exact and not is_due)
        return found


class AsyncLocalFirstEngine(_LocalFirst):
    """The engine for event loops."""

    async def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """As the engine's; decided here if the charges' `sync_interval` allows it, or a rejection is remembered."""
        call = charges if type(charges) is Call else Call.of(charges)
        receipts = list(refund_if_denied) if refund_if_denied else ()
        found: Any = self.decide(call, version, receipts) if now_us is None else None
        if found is None:
            found = await self.engine.check(call, version=version, refund_if_denied=receipts, now_us=now_us)
        elif type(found) is SyncCall:
            found = await self.ask(found)
        return found if call is charges else [*found]

    async def ask(self, call: SyncCall) -> Answer:
        """Call the engine for what cannot be decided here, usually once. If it raises, nothing is charged here."""
        counters = self.counters
        if call.is_exact:
            answer: Answer = await call.ask_as_given(self.engine)
            with counters.lock:
                call.remember(answer, counters.now())
            return answer
        with counters.lock:
            wider = call.wider()
        if wider is not None:
            await self._make(wider)
        return await self._make(call)

    async def _make(self, call: SyncCall) -> Answer:
        counters, answer = self.counters, None
        with counters.lock:
            call.prepare()
        if call.is_made:
            try:
                answer = await call.send(self.engine)
            except BaseException:
                with counters.lock:
                    call.fail()
                raise
        with counters.lock:
            return call.settle(answer, counters.now())

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return approximately the verdicts that `check` would give now. Charges and counts nothing."""
        charges = list(charges)
        if now_us is not None or all(charge.sync_interval is None for charge in charges):
            return await self.engine.peek(charges, now_us)  # type: ignore[no-any-return]
        asked = [charge for charge in charges if not is_local(charge)]
        return self.counters.peek(charges, await self.engine.peek(asked) if asked else ())

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        if others := self.counters.refund(verdicts):
            await self.engine.refund(others)

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        charges = list(charges)
        self.counters.forget(charges)
        await self.engine.reset(charges)

    async def flush(self) -> None:
        """Send all unsent units and usage to the engine, at the end of a process."""
        call, counters = None, self.counters
        while call is None or call.is_made:
            call = SyncCall(counters, NO_CALL, None, (), counters.now())
            with counters.lock:
                call.add_piggybacked(due=False)
            await self._make(call)


class LocalFirstEngine(_LocalFirst):
    """The engine for threads."""

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        super().__init__(engine, counters)
        self._twin = AsyncLocalFirstEngine(ImmediateAdapter(engine), counters)

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """As the engine's; decided here if the charges' `sync_interval` allows it, or a rejection is remembered."""
        call = charges if type(charges) is Call else Call.of(charges)
        receipts = list(refund_if_denied) if refund_if_denied else ()
        found: Any = self.decide(call, version, receipts) if now_us is None else None
        if found is None:  # without a coroutine, as nearly every call comes here
            found = self.engine.check(call, version=version, refund_if_denied=receipts, now_us=now_us)
        elif type(found) is SyncCall:
            found = run_sync(self._twin.ask(found))
        return found if call is charges else [*found]

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return approximately the verdicts that `check` would give now. Charges and counts nothing."""
        return run_sync(self._twin.peek(charges, now_us))

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        run_sync(self._twin.refund(verdicts))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        run_sync(self._twin.reset(charges))

    def flush(self) -> None:
        """Send all unsent units and usage to the engine, at the end of a process. Raises nothing if that fails."""
        with suppress(EngineUnavailable):
            run_sync(self._twin.flush())

    def to_async(self) -> AsyncLocalFirstEngine:
        """Return the engine for event loops."""
        return AsyncLocalFirstEngine(as_async(self.engine), self.counters)
