"""The engine of a process: it decides here if units are in hand or a rejection still holds, else on the server.

`LocalFirstEngine` for threads and `AsyncLocalFirstEngine` for event loops share one `LocalCounters`. What calls the
engine is written once, in coroutines; for threads they never suspend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from ...exceptions import EngineUnavailable, StaleRules
from ..adapters import ImmediateAdapter, as_async
from ..base import Charge, Verdict, Version, receipts_of
from ..call import NO_CHARGES, Answer, Call, LocalAnswer
from ..coroutines import finished, run_sync
from ..usage import field_of, outcome_of
from .prefetch import Hand
from .store import KEPT_INTERVALS, LocalCounters


class Asked(NamedTuple):
    """A call of the engine to make for what is not decided here. fetching: see `Hands.fetch`. options: of `check`."""

    call: Call
    fetching: Sequence[tuple[int, Hand]]
    began: float
    options: dict[str, Any]


class _LocalFirst:
    """The common part. Other attributes are those of the wrapped engine.

    engine: decides exactly. counters: of this process.
    """

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        self.engine, self.counters = engine, counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def begin(
        self, call: Call, version: int | Version | None, receipts: Sequence[Verdict], *, reject: bool = False
    ) -> Answer | Asked | None:
        """Return the answer, or the call to make for it; `None` = ask the engine, and keep nothing of its reply.

        reject: the call is rejected already.
        """
        counters, template = self.counters, call.template
        usage, hands = counters.usage, counters.hands
        is_special = hands.held or counters.rejections.seconds or reject or not usage.is_empty
        if not (template.is_fetched or is_special):
            return None
        now, comes_again = counters.now(), False
        if template.is_fetched:
            seen, partitions = counters.seen, call.partitions
            for place in template.callers:
                comes_again |= seen.get(partitions[place], now) > now
            until = now + (template.sync_interval * KEPT_INTERVALS if comes_again else template.sync_interval)
            for place in template.callers:
                seen[partitions[place]] = until
            if len(seen) > counters.max_counters:
                seen.clear()
            if not (comes_again or is_special):
                return None
        with counters.lock:
            if not counters.version_state.is_current(version, now):
                answer = None
            elif comes_again:
                answer = hands.decide(call, version, now, rejected=reject, refunds=bool(receipts))
            else:
                is_repeated = not (template.is_fetched or reject or receipts)
                answer = counters.rejections.answer(call, version, now) if is_repeated else None
            if answer is None:
                return self._asked(call, version, receipts, now, comes_again=comes_again, reject=reject)
            counters.count(answer)
            return answer

    def _asked(
        self,
        call: Call,
        version: int | Version | None,
        receipts: Sequence[Verdict],
        now: float,
        *,
        comes_again: bool,
        reject: bool,
    ) -> Asked | None:
        """Return the call for what is not decided here; `None` = as it is given, and nothing of its reply is kept."""
        counters, hands, template = self.counters, self.counters.hands, call.template
        fetching: Sequence[tuple[int, Hand]] = ()
        if comes_again or (hands.held and not (template.is_exact or template.is_fetched)):
            is_current = counters.version_state.is_current(version, now)
            call, fetching = hands.fetch(call, version, now, is_current=is_current)
        elif hands.held and (returned := hands.due(call, now)):
            call = call.fetching((), returned)
        counts = counters.usage.lease() if now >= counters.usage.due_at else None
        if not (fetching or call.returned or counts or reject or counters.rejections.seconds):
            return None
        counters.version_state.confirm(version, now, begins=True)
        options = {"version": version, "refund_if_denied": receipts, "reject": reject, "counts": counts}
        return Asked(
            call, fetching, now, {name: option for name, option in options.items() if option or name == "version"}
        )

    def lose(self) -> None:
        """Drop all units in hand, as the engine is out of reach."""
        with self.counters.lock:
            self.counters.hands.lose()


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
        """As the engine's; decided here if units are in hand, or a rejection is remembered."""
        call = charges if type(charges) is Call else Call.of(charges)
        receipts = list(refund_if_denied) if refund_if_denied else ()
        if now_us is not None:
            found = await self.engine.check(call, version=version, refund_if_denied=receipts, now_us=now_us)
        elif call.template.locals or (receipts and any(each.charge.is_local for each in receipts)):
            found = await self.check_partly(call, version, receipts)
        else:
            found = await self.check_wholly(call, version, receipts)
        return found if call is charges else [*found]

    async def check_wholly(
        self, call: Call, version: int | Version | None, receipts: Sequence[Verdict], *, reject: bool = False
    ) -> Any:
        """Decide a call without purely local charges."""
        found: Any = self.begin(call, version, receipts, reject=reject)
        if type(found) is Asked:
            is_immediate = type(self.engine) is ImmediateAdapter
            return await (self.ask(found) if is_immediate else finished(self.ask(found)))
        if found is not None:
            return found
        try:
            return await self.engine.check(call, version=version, refund_if_denied=receipts)
        except EngineUnavailable:
            self.lose()
            raise

    async def ask(self, asked: Asked) -> Any:
        """Make this call, and keep what it fetches. Let it end even if its task is cancelled, so that this is known."""
        counters, hands, version = self.counters, self.counters.hands, asked.options.get("version")
        try:
            with counters.usage.sending(asked.options.get("counts")):
                answer = await self.engine.check(asked.call, **asked.options)
        except BaseException as error:
            with counters.lock:
                for _, hand in asked.fetching:
                    hand.is_fetching = False
                if isinstance(error, EngineUnavailable):
                    hands.lose()
            if isinstance(error, StaleRules) and (receipts := receipts_of(asked.call.returned)):
                with suppress(EngineUnavailable):
                    await self.engine.refund(receipts)
            raise
        with counters.lock:
            now = counters.now()
            counters.version_state.confirm(version, asked.began)
            if asked.fetching:
                answer = hands.settle(asked.call, asked.fetching, answer, asked.began, now)
                counters.watch()
            elif counters.rejections.seconds and answer and answer.is_rejected:
                counters.rejections.store(answer, version, now)
        return answer

    async def check_partly(self, call: Call, version: int | Version | None, receipts: Sequence[Verdict]) -> Answer:
        """Decide what is purely local in memory, then the others. All or nothing."""
        counters, memory, alone = self.counters, self.counters.memory, call.template.locals
        others = [place for place in range(len(call)) if place not in alone]
        ours, theirs = ([each for each in receipts if each.charge.is_local is kind] for kind in (True, False))
        began = counters.now()
        if not (others or counters.version_state.is_current(version, began)):
            await self.check_wholly(NO_CHARGES, version, ())
            counters.version_state.confirm(version, began)
        mine: Any = memory.check(call.part(alone))
        parts: list[tuple[Sequence[int], Any]] = [(alone, mine)]
        rest, is_rejected = None, mine.is_rejected
        if others or (is_rejected and theirs):
            part = call.part(others)
            try:
                rest = await self.check_wholly(part, version, theirs, reject=is_rejected)
            except BaseException:
                memory.refund(mine)
                raise
            parts.append((others, rest))
            call.is_reported |= part.is_reported
            if rest.is_rejected and not is_rejected:
                memory.refund(mine)
                is_rejected = True
        if is_rejected:
            memory.refund(ours)
            for verdict in mine:
                verdict.soft_exceeded = False
        so_far = outcome_of(field_of(rest, so_far=call.template.so_far)).replace("s", "a") if rest else ""
        with counters.lock:
            counters.count(mine, so_far)
        answer = (LocalAnswer if rest is None or rest.is_local else Answer).joined(call, parts)
        if is_rejected:
            answer.reject()
        return answer

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now; what other processes have in hand counts as used."""
        charges = list(charges)
        if now_us is not None or all(charge.sync_interval is None for charge in charges):
            return await self.engine.peek(charges, now_us)  # type: ignore[no-any-return]
        asked = [charge for charge in charges if not charge.is_local]
        found = [*(await self.engine.peek(asked) if asked else ())]
        with self.counters.lock:
            self.counters.hands.add_own(found, self.counters.now())
        theirs = iter(found)
        return [self.counters.memory.peek([each])[0] if each.is_local else next(theirs) for each in charges]

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        if others := self.counters.refund(verdicts):
            await self.engine.refund(others)

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        charges = list(charges)
        self.counters.forget(charges)
        await self.engine.reset(charges)


class LocalFirstEngine(_LocalFirst):
    """The engine for threads."""

    def __init__(self, engine: Any, counters: LocalCounters) -> None:
        super().__init__(engine, counters)
        self._twin = AsyncLocalFirstEngine(ImmediateAdapter(engine), counters)
        counters.engine = engine
        counters.hands.shard_of = engine.shard_of if getattr(engine, "shards", 1) > 1 else None

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
        found: Any = None
        if call.template.locals or (receipts and any(each.charge.is_local for each in receipts)):
            found = run_sync(self._twin.check(call, version=version, refund_if_denied=receipts, now_us=now_us))
        elif now_us is None:
            found = self.begin(call, version, receipts)
            if type(found) is Asked:
                found = run_sync(self._twin.ask(found))
        if found is None:  # without a coroutine, as nearly every call comes here
            try:
                found = self.engine.check(call, version=version, refund_if_denied=receipts, now_us=now_us)
            except EngineUnavailable:
                self.lose()
                raise
        return found if call is charges else [*found]

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now; what other processes have in hand counts as used."""
        return run_sync(self._twin.peek(charges, now_us))

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""
        run_sync(self._twin.refund(verdicts))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Delete these counters. Other processes notice it with their next call."""
        run_sync(self._twin.reset(charges))

    def flush(self) -> None:
        """Give back all units and send all usage, at the end of a process. Raises nothing if that fails."""
        with suppress(EngineUnavailable):
            self.counters.give_back(inf)

    def to_async(self) -> AsyncLocalFirstEngine:
        """Return the engine for event loops."""
        return AsyncLocalFirstEngine(as_async(self.engine), self.counters)
