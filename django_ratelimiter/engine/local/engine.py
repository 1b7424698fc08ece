"""The engine as a process asks it: seldom, where its rules say so or a refusal still holds.

`LocalFirstEngine` for threads and `AsyncLocalFirstEngine` for event loops share one `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ...exceptions import EngineUnavailable
from ..adapters import as_async
from ..base import Charge, Verdict, Version
from ..templates import FilledCharges
from .counter import LocalVerdict
from .counters import LocalCounters
from .sync import SyncRequest, is_local


class _LocalFirst:
    """What both have in common. All that is not said here is the engine's own."""

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        self.engine, self.counters = engine, counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def _passes_on(self, charges: FilledCharges) -> bool:
        """Whether only the engine can decide these charges, and there is nothing to tell it."""
        counters = self.counters
        return charges.template.is_exact and not counters.denials.seconds and not counters.has_pending

    def _is_exact(self, charges: Sequence[Charge], receipts: Sequence[Verdict]) -> bool:
        """Whether the local counters have nothing to say or to learn."""
        if type(charges) is FilledCharges:
            if not charges.template.is_exact:
                return False
        elif any(charge.sync_interval is not None for charge in charges):
            return False
        for receipt in receipts:
            if type(receipt) is LocalVerdict:
                return False
        return not self.counters.has_pending


class LocalFirstEngine(_LocalFirst):
    """An engine for threads.

    engine: what decides exactly. counters: what this process knows; `None` = nothing yet, with these two settings.
    denial_memory: seconds for which a refusal is remembered at most. ask_interval: seconds after which the engine is
    asked for the version, whatever is known here.
    """

    def __init__(
        self,
        engine: Any,
        counters: LocalCounters | None = None,
        *,
        denial_memory: float = 0.0,
        ask_interval: float = 1.0,
    ) -> None:
        super().__init__(engine, counters or LocalCounters(denial_memory, ask_interval))

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """As the engine's; decided here where the charges' `sync_interval` allows it, or a refusal is remembered."""
        if type(charges) is FilledCharges:
            if self._passes_on(charges) and now_us is None and not refund_if_denied:
                return self.engine.check(charges, version=version)  # type: ignore[no-any-return]
        elif type(charges) is not tuple:  # which come again, and are known
            charges = list(charges)
        receipts, counters = list(refund_if_denied), self.counters
        if now_us is not None:
            return self.engine.check(charges, version=version, refund_if_denied=receipts, now_us=now_us)  # type: ignore[no-any-return]
        exact = self._is_exact(charges, receipts)
        if exact and not counters.denials.seconds:
            return self.engine.check(charges, version=version, refund_if_denied=receipts)  # type: ignore[no-any-return]
        verdicts: Sequence[Verdict] | None = counters.decide_locally(charges, version, receipts)
        if verdicts is not None:
            return verdicts
        if not exact:
            return self._go(counters.decide_with_engine(charges, version, receipts))  # type: ignore[no-any-return]
        began = counters.now()
        verdicts = self.engine.check(charges, version=version, refund_if_denied=receipts)
        counters.remember_denials(verdicts, version, began)
        return verdicts

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now, about; spends and counts nothing."""
        charges = list(charges)
        if now_us is not None or all(charge.sync_interval is None for charge in charges):
            return self.engine.peek(charges, now_us)  # type: ignore[no-any-return]
        asked = [charge for charge in charges if not is_local(charge)]
        return self.counters.peek(charges, self.engine.peek(asked) if asked else [])

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent, once each."""
        others = self.counters.refund_local(verdicts)
        if others:
            self.engine.refund(others)

    def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys. Other processes hear of it when they ask the next time."""
        charges = list(charges)
        self.counters.forget(charges)
        self.engine.reset(charges)

    def flush(self) -> None:
        """Tell the engine all that it is owed; for the end of a process. Nothing is raised if it cannot be told."""
        with suppress(EngineUnavailable):
            self._go(self.counters.flush())

    def to_async(self) -> AsyncLocalFirstEngine:
        """The twin."""
        return AsyncLocalFirstEngine(as_async(self.engine), self.counters)

    def _go(self, path: Generator[SyncRequest, list[Verdict], Any]) -> Any:
        turn: Any = path.send
        given: Any = None
        while True:
            try:
                request = turn(given)
            except StopIteration as end:
                return end.value
            try:
                turn, given = path.send, request.send(self.engine)
            except BaseException as error:
                turn, given = path.throw, error


class AsyncLocalFirstEngine(_LocalFirst):
    """The same for event loops. engine: one whose methods are awaited."""

    async def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """As the engine's; decided here where the charges' `sync_interval` allows it, or a refusal is remembered."""
        if type(charges) is FilledCharges:
            if self._passes_on(charges) and now_us is None and not refund_if_denied:
                return await self.engine.check(charges, version=version)  # type: ignore[no-any-return]
        elif type(charges) is not tuple:  # which come again, and are known
            charges = list(charges)
        receipts, counters = list(refund_if_denied), self.counters
        if now_us is not None:
            return await self.engine.check(charges, version=version, refund_if_denied=receipts, now_us=now_us)  # type: ignore[no-any-return]
        exact = self._is_exact(charges, receipts)
        if exact and not counters.denials.seconds:
            return await self.engine.check(charges, version=version, refund_if_denied=receipts)  # type: ignore[no-any-return]
        verdicts: Sequence[Verdict] | None = counters.decide_locally(charges, version, receipts)
        if verdicts is not None:
            return verdicts
        if not exact:
            return await self._go(counters.decide_with_engine(charges, version, receipts))  # type: ignore[no-any-return]
        began = counters.now()
        verdicts = await self.engine.check(charges, version=version, refund_if_denied=receipts)
        counters.remember_denials(verdicts, version, began)
        return verdicts

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now, about; spends and counts nothing."""
        charges = list(charges)
        if now_us is not None or all(charge.sync_interval is None for charge in charges):
            return await self.engine.peek(charges, now_us)  # type: ignore[no-any-return]
        asked = [charge for charge in charges if not is_local(charge)]
        return self.counters.peek(charges, await self.engine.peek(asked) if asked else [])

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent, once each."""
        others = self.counters.refund_local(verdicts)
        if others:
            await self.engine.refund(others)

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys. Other processes hear of it when they ask the next time."""
        charges = list(charges)
        self.counters.forget(charges)
        await self.engine.reset(charges)

    async def _go(self, path: Generator[SyncRequest, list[Verdict], Any]) -> Any:
        turn: Any = path.send
        given: Any = None
        while True:
            try:
                request = turn(given)
            except StopIteration as end:
                return end.value
            try:
                turn, given = path.send, await request.send(self.engine)
            except BaseException as error:
                turn, given = path.throw, error
