"""The engine of a process: it decides locally if a rule is approximate or a denial still holds, else on the server.

`LocalFirstEngine` for threads and `AsyncLocalFirstEngine` for event loops share one `LocalCounters`. The calls of the
engine are written once, as coroutines; for threads they never suspend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ...exceptions import EngineUnavailable
from ..adapters import ImmediateAdapter, as_async
from ..base import Charge, Verdict, Version, as_charged, check_units
from ..coroutines import run_sync
from ..templates import FilledCharges
from .admission import admit_or_ask, decide
from .counter import LocalVerdict, is_local, is_twice
from .counters import LocalCounters
from .first_call import FirstCall
from .peeking import LocalRefusals, peek
from .sync import SyncCall, SyncRequest


class _LocalFirst:
    """The common part of both engines. Other attributes are those of the wrapped engine.

    awaitable: the wrapped engine with methods that must be awaited.
    """

    def __init__(self, engine: Any, counters: LocalCounters, awaitable: Any) -> None:
        self.engine, self.counters, self._awaitable = engine, counters, awaitable

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def _is_exact(self, charges: Sequence[Charge], receipts: Sequence[Verdict]) -> bool:
        """Return whether no charge or receipt concerns the local counters."""
        if type(charges) is FilledCharges:
            if not charges.template.is_exact:
                return False
        elif any(charge.sync_interval is not None for charge in charges):
            return False
        for receipt in receipts:
            if type(receipt) is LocalVerdict:
                return False
        return not self.counters.usage

    async def _ask(
        self, charges: Sequence[Charge], version: int | Version | None, receipts: Sequence[Verdict]
    ) -> Sequence[Verdict]:
        """Call the engine, at most once, for what cannot be decided locally. If it raises, nothing is charged here."""
        counters = self.counters
        if self._is_exact(charges, receipts):
            began = counters.now()
            found: Sequence[Verdict] = await self._awaitable.check(charges, version=version, refund_if_denied=receipts)
            counters.remember_denials(found, version, began)
            return found
        for charge in charges:
            check_units(charge)
        if is_twice(charges):
            raise ValueError("charges: the same key and limit occur twice in one call; add up their costs instead.")
        await self._sync_wider(charges)
        call = SyncCall(counters, charges, version, receipts, counters.now())
        with counters.lock:
            call.place_charges()
            request = call.build_request()
        replies = [] if request is None else await self._send(call, request)
        with counters.lock:
            verdicts = call.apply_replies(replies, counters.now())
            counters.usage.count(call.counted_locally(verdicts))
        return verdicts

    async def _ask_first(self, call: FirstCall, version: int | Version | None) -> Sequence[Verdict]:
        options = {"counts": call.counts} if call.counts else {}
        try:
            verdicts: Sequence[Verdict] = await self._awaitable.check(call.asked(), version=version, **options)
        except BaseException:
            self.counters.fail_first(call)
            raise
        self.counters.finish_first(call, verdicts, version)
        return verdicts

    async def _sync_wider(self, charges: Sequence[Charge]) -> None:
        """First sync units of these counters that were charged under a wider limit."""
        counters = self.counters
        with counters.lock:
            call = SyncCall(counters, (), None, (), counters.now())
            request = call.build_request(always=False) if call.add_wider(charges) else None
        if request is not None:
            await self._sync(call, request)

    async def _sync(self, call: SyncCall, request: SyncRequest) -> None:
        replies = await self._send(call, request)
        with self.counters.lock:
            call.apply_replies(replies, self.counters.now())

    async def _send(self, call: SyncCall, request: SyncRequest) -> list[Verdict]:
        try:
            replies: list[Verdict] = await request.send(self._awaitable)
        except BaseException:
            with self.counters.lock:
                call.fail()
            self.counters.usage.acknowledge(request.counts, done=False)
            raise
        self.counters.usage.acknowledge(request.counts, done=True)
        return replies

    async def _flush(self) -> None:
        """Send all unsent units to the engine, in as many calls as needed."""
        counters = self.counters
        while True:
            with counters.lock:
                call = SyncCall(counters, (), None, (), counters.now())
                call.add_piggybacked(due=False)
                request = call.build_request(always=False)
            if request is None:
                return
            await self._sync(call, request)


class LocalFirstEngine(LocalRefusals, _LocalFirst):
    """An engine for threads.

    engine: decides exactly. counters: of this process; `None` = new ones with the next two arguments.
    denial_memory: maximum seconds for which a denial is remembered. ask_interval: seconds after which the engine is
    called for the version in any case.
    """

    def __init__(
        self,
        engine: Any,
        counters: LocalCounters | None = None,
        *,
        denial_memory: float = 0.0,
        ask_interval: float = 1.0,
    ) -> None:
        super().__init__(engine, counters or LocalCounters(denial_memory, ask_interval), ImmediateAdapter(engine))

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """As the engine's; decided locally if the charges' `sync_interval` allows it, or a denial is remembered."""
        counters = self.counters
        if type(charges) is FilledCharges:
            has_usage = (counters.usage.counts or not counters.usage.buffer.is_empty) and counters.usage.is_due()
            if now_us is None and not (refund_if_denied or counters.denials.seconds or has_usage):
                if charges.template.is_exact:
                    return self.engine.check(charges, version=version)  # type: ignore[no-any-return]
                began, changes = counters.now(), counters.by_name.changes
                if (at_once := admit_or_ask(charges, counters, version, began)) is not None:
                    return at_once or self._ask_new(charges, version, began, changes)
        elif type(charges) is not tuple:  # which are reused, and known
            charges = list(charges)
        receipts = list(refund_if_denied)
        if now_us is not None:
            return self.engine.check(charges, version=version, refund_if_denied=receipts, now_us=now_us)  # type: ignore[no-any-return]
        if not counters.denials.seconds and self._is_exact(charges, receipts):
            return self.engine.check(charges, version=version, refund_if_denied=receipts)  # type: ignore[no-any-return]
        found = decide(counters, charges, version, receipts)
        if found is None:
            return run_sync(self._ask(charges, version, receipts))
        if type(found) is FirstCall:
            return run_sync(self._ask_first(found, version)) if found.counts else self._ask_once(found, version)
        return found  # type: ignore[return-value]

    def _ask_once(self, call: FirstCall, version: int | Version | None) -> Sequence[Verdict]:
        """Make a call that carries no usage: as `_ask_first`, but without a coroutine."""
        try:
            verdicts: Sequence[Verdict] = self.engine.check(call.asked(), version=version)
        except BaseException:
            self.counters.fail_first(call)
            raise
        self.counters.finish_first(call, verdicts, version)
        return verdicts

    def _ask_new(
        self, charges: FilledCharges, version: int | Version | None, began: float, changes: int
    ) -> Sequence[Verdict]:
        """Call the engine for charges without local data. changes: of the counters when the call began."""
        try:
            found: Sequence[Verdict] = self.engine.check(charges, version=version)
        except BaseException:
            self.counters.end_first(charges)
            raise
        self.counters.note_first(charges, found, version, began, changes)
        return found

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return approximately the verdicts that `check` would give now. Charges and counts nothing."""
        charges = list(charges)
        if now_us is not None or all(charge.sync_interval is None for charge in charges):
            return self.engine.peek(charges, now_us)  # type: ignore[no-any-return]
        asked = [charge for charge in charges if not is_local(charge)]
        return peek(self.counters, charges, self.engine.peek(asked) if asked else [])

    def trial(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts of `check`, with the remaining units after it. Charges and counts nothing."""
        charges = list(charges)
        if now_us is not None or all(charge.sync_interval is None for charge in charges):
            return self.engine.trial(charges, now_us)  # type: ignore[no-any-return]
        return as_charged(self.peek(charges))

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        others = self.counters.refund_local(verdicts)
        if others:
            self.engine.refund(others)

    def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        charges = list(charges)
        self.counters.forget(charges)
        self.engine.reset(charges)

    def flush(self) -> None:
        """Send all unsent units to the engine, at the end of a process. Raises nothing if that fails."""
        with suppress(EngineUnavailable):
            run_sync(self._flush())

    def to_async(self) -> AsyncLocalFirstEngine:
        """Return the engine for event loops."""
        return AsyncLocalFirstEngine(as_async(self.engine), self.counters)


class AsyncLocalFirstEngine(_LocalFirst):
    """`LocalFirstEngine` for event loops. engine: its methods are awaited."""

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        super().__init__(engine, counters, engine)

    async def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """As the engine's; decided locally if the charges' `sync_interval` allows it, or a denial is remembered."""
        counters = self.counters
        if type(charges) is FilledCharges:
            has_usage = (counters.usage.counts or not counters.usage.buffer.is_empty) and counters.usage.is_due()
            if now_us is None and not (refund_if_denied or counters.denials.seconds or has_usage):
                if charges.template.is_exact:
                    return await self.engine.check(charges, version=version)  # type: ignore[no-any-return]
                began, changes = counters.now(), counters.by_name.changes
                if (at_once := admit_or_ask(charges, counters, version, began)) is not None:
                    return at_once or await self._ask_new(charges, version, began, changes)
        elif type(charges) is not tuple:  # which are reused, and known
            charges = list(charges)
        receipts = list(refund_if_denied)
        if now_us is not None:
            return await self.engine.check(charges, version=version, refund_if_denied=receipts, now_us=now_us)  # type: ignore[no-any-return]
        if not counters.denials.seconds and self._is_exact(charges, receipts):
            return await self.engine.check(charges, version=version, refund_if_denied=receipts)  # type: ignore[no-any-return]
        found = decide(counters, charges, version, receipts)
        if found is None:
            return await self._ask(charges, version, receipts)
        if isinstance(found, FirstCall):
            return await self._ask_first(found, version)
        return found

    async def _ask_new(
        self, charges: FilledCharges, version: int | Version | None, began: float, changes: int
    ) -> Sequence[Verdict]:
        """Call the engine for charges without local data. changes: of the counters when the call began."""
        try:
            found: Sequence[Verdict] = await self.engine.check(charges, version=version)
        except BaseException:
            self.counters.end_first(charges)
            raise
        self.counters.note_first(charges, found, version, began, changes)
        return found

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return approximately the verdicts that `check` would give now. Charges and counts nothing."""
        charges = list(charges)
        if now_us is not None or all(charge.sync_interval is None for charge in charges):
            return await self.engine.peek(charges, now_us)  # type: ignore[no-any-return]
        asked = [charge for charge in charges if not is_local(charge)]
        return peek(self.counters, charges, await self.engine.peek(asked) if asked else [])

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        others = self.counters.refund_local(verdicts)
        if others:
            await self.engine.refund(others)

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        charges = list(charges)
        self.counters.forget(charges)
        await self.engine.reset(charges)
