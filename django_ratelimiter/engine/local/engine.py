"""The engine of a process: it decides here if units are in hand or a rejection still holds, else on the server.

`LocalFirstEngine` for threads and `AsyncLocalFirstEngine` for event loops share one `LocalCounters`. What calls the
engine is written once, in coroutines; for threads they never suspend. Other attributes are those of the wrapped engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from ...exceptions import EngineUnavailable, StaleRules
from ..base import Charge, Counted, Verdict, Version, mark_refunded, receipts_of
from ..call import Answer, Call, CounterStates, LocalAnswer
from ..coroutines import ImmediateAdapter, as_async, finished, run_sync
from ..partition_stats import MINUTE_US
from ..usage import continued, joined, refunded, uncounted
from .store import Hand, LocalCounters


class AsyncLocalFirstEngine:
    """The engine for event loops. engine: decides exactly. counters: of this process."""

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        self.engine, self.counters = engine, counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        reject: bool = False,
    ) -> Sequence[Verdict]:
        """As the engine's; decided here if units are in hand, or a rejection is remembered."""
        call = charges if type(charges) is Call else Call.of(charges)
        receipts = list(refund_if_denied) if refund_if_denied else ()
        found = self.begin(call, version, receipts, reject=reject) if now_us is None else None
        if found is None:
            found = await self.engine.check(call, version=version, refund_if_denied=receipts, now_us=now_us)
        elif not isinstance(found, Answer):
            found = await found
        return found if call is charges else [*found]

    def begin(self, call: Call, version: int | Version | None, receipts: Sequence[Verdict], reject: bool) -> Any:
        """Return the answer, or a coroutine that finds it; `None` = ask the engine, and keep nothing of its reply.

        reject: the call is rejected already.
        """
        counters, terms = self.counters, call.template.local
        if terms.alone or (receipts and any(each.charge.is_local for each in receipts)):
            return self.check_partly(call, version, receipts)
        is_special = counters.held or counters.denial_memory or reject or not counters.usage.is_empty
        if not (terms.is_fetched or is_special):
            return None
        now = counters.now()
        comes_again = terms.is_fetched and counters.comes_again(call, now)
        if not (comes_again or is_special):
            return None
        with counters.lock:
            is_due = version is not None and now >= counters.due_at
            if not is_due and comes_again is terms.is_fetched:
                answer = counters.decide(call, version, now, rejected=reject and comes_again, refunds=bool(receipts))
                if answer is not None:
                    return answer
            call, fetching = counters.fetch(call, version, now, comes_again=comes_again)
            counts = counters.usage.lease() if now >= counters.usage.due_at else None
        if not (fetching or call.returned or counts or reject or is_due or counters.denial_memory):
            return None
        options = {"version": version, "refund_if_denied": receipts, "reject": reject, "counts": counts}
        asked = self.ask(call, fetching, now, options)
        return asked if type(self.engine) is ImmediateAdapter else finished(asked)

    async def ask(self, call: Call, fetching: dict[int, Hand], began: float, options: dict[str, Any]) -> Answer:
        """Make this call, and keep what it fetches, or its rejection. options: of `check`."""
        counters, version = self.counters, options["version"]
        try:
            with counters.usage.sending(options["counts"]):
                answer = await self.engine.check(call, **options)
        except BaseException as error:
            with counters.lock:
                counters.forget([call.names()[place] for place in fetching])
            if isinstance(error, StaleRules) and (receipts := receipts_of(call.returned)):
                with suppress(EngineUnavailable):
                    await self.engine.refund(uncounted(receipts))
            raise
        with counters.lock:
            counters.due_at = max(counters.due_at, -inf if version is None else began + counters.ask_interval)
            return counters.settle(fetching, version, answer, began)

    async def check_partly(self, call: Call, version: int | Version | None, receipts: Sequence[Verdict]) -> Answer:
        """Decide what is purely local in memory, and the others as ever. All or nothing."""
        counters, local = self.counters, call.template.local.alone
        others = [place for place in range(len(call)) if place not in local]
        ours, theirs = ([each for each in receipts if each.charge.is_local is kind] for kind in (True, False))
        part, mine, began = call.part(others), call.part(local), counters.now()
        rest: Any = LocalAnswer.of(part, CounterStates(0, (), (), (), ()))
        rejected = bool(others or theirs) and counters.memory.look(mine).is_rejected
        is_due = version is not None and began >= counters.due_at
        if others or (rejected and theirs) or is_due:
            rest = await self.check(part, version=version, refund_if_denied=theirs, reject=rejected)
            call.is_reported |= part.is_reported
            counters.due_at = began + counters.ask_interval if is_due else counters.due_at
        found: Any = counters.memory.check(mine, refund_if_denied=ours, reject=rejected or rest.is_rejected)
        if found.is_rejected and not rest.is_rejected:  # another thread was faster
            await self.refund(uncounted(rest))
            mark_refunded(rest)
        counters.count(found, continued(call.so_far, rest, is_rejected=rest.is_rejected))
        answer = (LocalAnswer if rest.is_local else Answer).joined(call, [(local, found), (others, rest)])
        answer.is_rejected = found.is_rejected
        return answer

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now; what other processes have in hand counts as used."""
        places, counters = {charge: place for place, charge in enumerate(charges)}, self.counters
        theirs = [charge for charge in places if now_us is not None or not charge.is_local]
        told = await self.engine.peek(theirs, now_us) if theirs else []
        with counters.lock:
            counters.add_own(told)
        told += counters.memory.peek([charge for charge in places if now_us is None and charge.is_local])
        return sorted(told, key=lambda verdict: places[verdict.charge])

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        verdicts, counters = list(verdicts), self.counters
        minute = time.time_ns() // 1_000 // MINUTE_US
        counted = refunded(receipts_of(verdicts), minute)
        counters.memory.refund([verdict for verdict in verdicts if verdict.charge.is_local])
        with counters.lock:
            counters.put_back(verdicts)
        theirs = receipts_of(verdicts)
        by_engine = {field for _, field, _ in refunded(theirs, minute)}
        for entry in counted:
            if entry[1] not in by_engine:
                counters.usage.add(*entry, waits=True)
        if theirs:
            await self.engine.refund(theirs)

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        charges, counters = list(charges), self.counters
        with counters.lock:
            counters.forget([charge.key + charge.limit.tag for charge in charges])
        counters.memory.reset(charges)
        await self.engine.reset(charges)


class LocalFirstEngine:
    """The engine for threads. engine, counters: as for event loops."""

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        self.engine, self.counters = engine, counters
        self.twin: AsyncLocalFirstEngine = AsyncLocalFirstEngine(ImmediateAdapter(engine), counters)
        counters.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """As the engine's; decided here if units are in hand, or a rejection is remembered."""
        call = charges if type(charges) is Call else Call.of(charges)
        receipts = list(refund_if_denied) if refund_if_denied else ()
        found = self.twin.begin(call, version, receipts, reject=False) if now_us is None else None
        if found is None:  # without a coroutine, as nearly every call comes here
            found = self.engine.check(call, version=version, refund_if_denied=receipts, now_us=now_us)
        elif not isinstance(found, Answer):
            found = run_sync(found)
        return found if call is charges else [*found]

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now; what other processes have in hand counts as used."""
        return run_sync(self.twin.peek(charges, now_us))

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        run_sync(self.twin.refund(verdicts))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        run_sync(self.twin.reset(charges))

    def count_exempt(self, lines: Sequence[str], so_far: Sequence[Counted]) -> None:
        """Count a request of an exempt caller, see `MemoryEngine`. A later call sends this."""
        minute = self.engine.estimate_time(self.engine.time_to_send()) // MINUTE_US
        if field := joined(lines, "x" * len(lines), so_far, minute):
            self.counters.usage.add(minute, field, waits=True)

    def flush(self) -> None:
        """Give back all units and send all usage, at the end of a process. Raises nothing if that fails."""
        for _ in range(2):  # the first time, it may take longer than the deadline to connect
            with suppress(Exception):
                self.counters.give_back(inf)

    def to_async(self) -> AsyncLocalFirstEngine:
        """Return the engine for event loops."""
        return AsyncLocalFirstEngine(as_async(self.engine), self.counters)
