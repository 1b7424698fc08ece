"""What a process decides by itself: approximate mode and denial memory.

One `LocalCounters` serves all threads and event loops of a process. `LocalFirstEngine` asks the engine for the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final
from weakref import WeakSet

from ..base import Charge, Verdict, Version
from ..memory import MemoryEngine
from ..templates import FilledCharges
from ..usage import COUNTER, SHADOW, UsageBuffer
from .admission import admit_filled, admit_one
from .counter import LocalCounter, LocalCounterPool, LocalVerdict
from .denials import CachedDenial, DenialCache, refuses
from .filled import SyncCharges, synced_charges
from .first_call import FirstCall
from .first_calls import FirstCalls
from .peeking import peek
from .sync import is_local, is_twice, is_unsynced
from .usage import LocalUsage
from .version_state import VersionState

#: Seconds for which a purely local budget is spent before its window is looked at again, and parts of that window.
LOCAL_INTERVAL, LOCAL_PARTS = 0.1, 50

#: Those of this process.
_ALL: Final[WeakSet[LocalCounters]] = WeakSet()


class LocalCounters:
    """Budgets and refusals of one process.

    denial_memory: seconds for which a refusal is remembered at most; 0 = none is. ask_interval: seconds after which
    the engine is asked, whatever is known here, so that new rules are heard of. max_counters: counters to know of.
    clock: monotonic seconds. memory: counts what is purely local. usage_buffer: usage that the engine has not counted.
    """

    def __init__(
        self,
        denial_memory: float = 0.0,
        ask_interval: float = 1.0,
        max_counters: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        memory: MemoryEngine | None = None,
        usage_buffer: UsageBuffer | None = None,
    ) -> None:
        self._denial_memory, self._ask_interval = denial_memory, ask_interval
        self.memory = memory or MemoryEngine(max_counters=max_counters)
        self._usage_buffer = UsageBuffer() if usage_buffer is None else usage_buffer
        self.max_counters, self._clock = max_counters, clock
        self.clear()
        _ALL.add(self)

    def clear(self) -> None:
        """Know nothing any more, and owe nothing: in a new process, these are its parent's."""
        self.lock = Lock()
        self.memory = self.memory.fresh_copy()
        self.by_name = LocalCounterPool()
        self.first_calls = FirstCalls(self.by_name, self.max_counters, self.lock)
        self.denials = DenialCache(self._denial_memory, self.max_counters)
        self.usage = LocalUsage(self._usage_buffer, self._clock)
        self.version_state = VersionState(self._ask_interval)
        self.sweep_at = float("-inf")

    def decide(
        self, charges: Sequence[Charge], version: int | Version | None, receipts: Sequence[Verdict]
    ) -> Sequence[Verdict] | FirstCall | None:
        """Return the verdicts if all of them are known here, or a call to make of the engine, see `finish_first`.

        `None` = the engine must be asked in another way.
        """
        now = self._clock()
        current = self.version_state.is_current(version, now)
        if current and len(charges) == 1 and type(charges) is not FilledCharges:
            charge = charges[0]
            if charge.sync_interval is not None:
                verdict = self._admit_one(charge, now)
            else:
                verdict = None if receipts else self._deny_one(charge, version, now)
            if verdict is not None:
                return [verdict]
        synced = synced_charges(charges)
        with self.lock:
            if current:
                verdicts = synced and self._admit_filled(charges, synced, now)
                verdicts = verdicts or self._decide_or_learn(charges, synced, version, receipts, now)
                if verdicts is not None:
                    return verdicts
            if receipts or synced is None:
                return None
            call = self.first_calls.start(charges, synced, now)
            if call is not None and self.usage.is_due():
                call.counts = self.usage.lease()
            return call

    def _decide_or_learn(
        self,
        charges: Sequence[Charge],
        synced: SyncCharges | None,
        version: int | Version | None,
        receipts: Sequence[Verdict],
        now: float,
    ) -> Sequence[Verdict] | None:
        """Decide what was not allowed at once, perhaps by counters that are made now of what the engine has said."""
        if synced is not None:
            changes = self.by_name.changes
            if not self.first_calls.count(charges, synced, now) or self.first_calls.is_due(synced.names, now):
                return None
            if self.by_name.changes != changes and (verdicts := self._admit_filled(charges, synced, now)):
                return verdicts
        return self._decide_known(charges, version, receipts, now)

    def _admit_filled(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> Sequence[Verdict] | None:
        """Fast path: allow charges from a template that are all counted here; `None` = take the general path."""
        return admit_filled(charges, synced, self, now) if type(charges) is FilledCharges else None

    def _decide_known(
        self, charges: Sequence[Charge], version: int | Version | None, receipts: Sequence[Verdict], now: float
    ) -> list[Verdict] | None:
        known: list[LocalCounter | CachedDenial] = []
        denied = remembered = False
        if not all(self._is_known(charge, now) for charge in charges):
            return None
        for charge in charges:
            found = self._source_of(charge, version, now)
            if found is None:
                return None
            known.append(found)
            if type(found) is CachedDenial:
                remembered = True
                denied = denied or found.refuses
            elif charge.gating and charge.cost > charge.limit.quota - found.used:  # type: ignore[union-attr]
                denied = True
        if (remembered and not denied) or (denied and receipts) or (len(known) > 1 and is_twice(charges)):
            return None
        verdicts = [
            each.replay(charge, now) if type(each) is CachedDenial else each.decide(charge, now, denied=denied)  # type: ignore[union-attr]
            for charge, each in zip(charges, known, strict=True)
        ]
        self.usage.count(verdicts)
        return verdicts if known else None

    def note_first(
        self,
        charges: FilledCharges,
        verdicts: Sequence[Verdict],
        version: int | Version | None,
        began: float,
        changes: int,
    ) -> None:
        """Note the engine's reply to charges that were not known when a call began. changes: of `by_name` then."""
        with self.lock:
            self.version_state.confirm(version, began)
            self.first_calls.finish_new(charges, verdicts, began, self._clock(), changes)

    def end_first(self, charges: FilledCharges) -> None:
        """Note that the engine has given no reply to charges that were not known."""
        with self.lock:
            self.first_calls.end(charges)

    def finish_first(self, call: FirstCall, verdicts: Sequence[Verdict], version: int | Version | None) -> None:
        """Note the engine's reply to a call that `decide` has returned."""
        with self.lock:
            self.first_calls.finish(call, verdicts, self._clock())
            self.version_state.confirm(version, call.began)
        self.usage.acknowledge(call.counts, done=True)

    def fail_first(self, call: FirstCall) -> None:
        """Note that the engine has given no reply to that call."""
        with self.lock:
            self.first_calls.fail(call)
        self.usage.acknowledge(call.counts, done=False)

    def _deny_one(self, charge: Charge, version: int | Version | None, now: float) -> Verdict | None:
        """Fast path: deny a single charge that was denied a moment ago; `None` = take the general path."""
        with self.lock:
            refusal = self.denials.find(charge, version, now)
            if refusal is None or not refusal.refuses or type(charge.cost) is not int:
                return None
            verdict = refusal.replay(charge, now)
            if charge.usage is not None:
                self.usage.add(verdict.at_us, f"{charge.usage}\nd{COUNTER}{charge.key}{charge.limit.tag}")
            return verdict

    def _admit_one(self, charge: Charge, now: float) -> Verdict | None:
        """Fast path: allow a single charge that is counted here and fits; `None` = take the general path."""
        with self.lock:
            verdict = admit_one(charge, self.by_name, now)
            if verdict is not None and charge.usage is not None:
                label = charge.usage if charge.gating else SHADOW + charge.usage
                self.usage.add(verdict.at_us, label + ("\ns" if verdict.soft_exceeded else "\na"))
            return verdict

    def _is_known(self, charge: Charge, now: float) -> bool:
        """Whether there may be something here that decides this charge."""
        if charge.sync_interval is None:
            return bool(self.denials)
        return charge.key + charge.limit.tag in self.by_name

    def _source_of(
        self, charge: Charge, version: int | Version | None, now: float
    ) -> LocalCounter | CachedDenial | None:
        """What decides this charge here."""
        cost, limit = charge.cost, charge.limit
        if type(cost) is not int or cost < 0 or charge.carried:
            return None
        if charge.sync_interval is None:
            return self.denials.find(charge, version, now)
        name = charge.key + limit.tag
        counter = self.by_name.get(name)
        if counter is None or limit.quota > counter.at_most:
            return None
        fits = cost <= limit.quota - counter.used
        if now < counter.due_at:
            if fits or charge.sync_interval > 0 or counter.still_refuses(charge, now):
                return counter
        elif counter.asked_by is not None:  # another thread is asking, and what was known will do so long
            return counter
        return None

    def now(self) -> float:
        """The time."""
        return self._clock()

    def remember_denials(self, verdicts: Sequence[Verdict], version: int | Version | None, began: float) -> None:
        """Take the engine's answer to a call that began then: the version is in force, and a refusal is kept."""
        with self.lock:
            self.version_state.confirm(version, began)
            if any(map(refuses, verdicts)):
                self.denials.store(verdicts, version, self._clock())

    def refund_local(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Give back what these spent of budgets and the engine was not told of; the others."""
        others, now = [], self._clock()
        with self.lock:
            for verdict in verdicts:
                if isinstance(verdict, LocalVerdict) and is_unsynced(verdict):
                    verdict.counter.refund(verdict.spent)
                    verdict.mark_refunded()
                elif isinstance(verdict, LocalVerdict) and is_local(verdict.charge):
                    self.memory.refund([verdict])
                    verdict.counter.due_at = float("-inf")
                else:
                    others.append(verdict)
                    name = verdict.charge.key + verdict.charge.limit.tag
                    if synced := synced_charges([verdict.charge]):
                        self.first_calls.count([verdict.charge], synced, now)
                    if name in self.by_name:
                        self.by_name[name].engine_refunded()
        return others

    def forget(self, charges: Iterable[Charge]) -> None:
        """Know nothing of these keys any more."""
        charges = list(charges)
        with self.lock:
            for charge in charges:
                name = charge.key + charge.limit.tag
                if name in self.by_name:
                    del self.by_name[name]
                self.first_calls.forget(charge)
                self.denials.forget(charge)
        self.memory.reset(charges)

    def peek(self, charges: Sequence[Charge], replies: Sequence[Verdict]) -> list[Verdict]:
        """What the charges would be told. replies: the engine's verdicts on those that it was asked about."""
        with self.lock:
            return peek(self, charges, replies, self._clock())

    def refresh(self, counter: LocalCounter, charge: Charge, now: float) -> None:
        """Renew a purely local budget from the memory that counts it."""
        carried = counter.unsynced(now)
        if carried:
            told = counter.charge._replace(cost=0, carried=carried, usage=None)
            self.memory.check([told], now_us=counter.time_at(counter.spent_at))
        [verdict] = self.memory.check([charge._replace(cost=0, usage=None)])
        window = charge.limit.window_us / 1_000_000
        counter.apply_reply(verdict, carried, now, now, min(LOCAL_INTERVAL, window / LOCAL_PARTS))
        if verdict.remaining < charge.cost <= charge.limit.quota:
            counter.refuse(charge, now + (self.memory.peek([charge])[0].retry_after or 0.0))


def _forget_in_child() -> None:
    for counters in _ALL:
        counters.clear()


os.register_at_fork(after_in_child=_forget_in_child)
