"""The local counters and remembered denials of a process: approximate mode and denial memory.

One `LocalCounters` serves all threads and event loops of a process. `admission` decides by it; `LocalFirstEngine`
calls the engine for the rest.
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
from ..usage import UsageBuffer
from .counter import LocalCounter, LocalCounterPool, LocalVerdict, is_local, is_unsynced
from .denials import DenialCache, refuses
from .filled import synced_charges
from .first_call import FirstCall
from .first_calls import FirstCalls
from .usage import LocalUsage
from .version_state import VersionState

#: A purely local counter is refreshed after this many seconds, or a fraction of its window if that is less.
LOCAL_INTERVAL, LOCAL_PARTS = 0.1, 50

#: The local counters of this process.
_ALL: Final[WeakSet[LocalCounters]] = WeakSet()


class LocalCounters:
    """The local counters and remembered denials of one process.

    denial_memory: maximum seconds for which a denial is remembered; 0 = not at all. ask_interval: seconds after which
    the engine is called in any case, to notice new rules. max_counters: maximum number of counters. clock: monotonic
    seconds. memory: counts what is purely local. usage_buffer: usage that the engine has not counted.
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
        """Drop everything, also unsent units: in a forked process they belong to the parent."""
        self.lock = Lock()
        self.memory = self.memory.fresh_copy()
        self.by_name = LocalCounterPool()
        self.first_calls = FirstCalls(self.by_name, self.max_counters, self.lock)
        self.denials = DenialCache(self._denial_memory, self.max_counters)
        self.usage = LocalUsage(self._usage_buffer, self._clock)
        self.version_state = VersionState(self._ask_interval)
        self.sweep_at = float("-inf")

    def note_first(
        self,
        charges: FilledCharges,
        verdicts: Sequence[Verdict],
        version: int | Version | None,
        began: float,
        changes: int,
    ) -> None:
        """Store the engine's reply to first charges. changes: of `by_name` when the call began."""
        with self.lock:
            self.version_state.confirm(version, began)
            self.first_calls.finish_new(charges, verdicts, began, self._clock(), changes)

    def end_first(self, charges: FilledCharges) -> None:
        """Record that a call for first charges got no reply."""
        with self.lock:
            self.first_calls.end(charges)

    def finish_first(self, call: FirstCall, verdicts: Sequence[Verdict], version: int | Version | None) -> None:
        """Store the engine's reply to a call from `admission.decide`."""
        with self.lock:
            self.first_calls.finish(call, verdicts, self._clock())
            self.version_state.confirm(version, call.began)
        self.usage.acknowledge(call.counts, done=True)

    def fail_first(self, call: FirstCall) -> None:
        """Record that this call got no reply."""
        with self.lock:
            self.first_calls.fail(call)
        self.usage.acknowledge(call.counts, done=False)

    def now(self) -> float:
        """Return the current time."""
        return self._clock()

    def remember_denials(self, verdicts: Sequence[Verdict], version: int | Version | None, began: float) -> None:
        """Store the reply to a call that began at `began`: the version is current, and denials are remembered."""
        with self.lock:
            self.version_state.confirm(version, began)
            if any(map(refuses, verdicts)):
                self.denials.store(verdicts, version, self._clock())

    def refund_local(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Refund units that are not sent to the engine yet. Return the other verdicts."""
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
        """Drop what is known about these keys."""
        charges = list(charges)
        with self.lock:
            for charge in charges:
                name = charge.key + charge.limit.tag
                if name in self.by_name:
                    del self.by_name[name]
                self.first_calls.forget(charge)
                self.denials.forget(charge)
        self.memory.reset(charges)

    def refresh(self, counter: LocalCounter, charge: Charge, now: float) -> None:
        """Update a purely local counter from the memory engine that counts it."""
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
