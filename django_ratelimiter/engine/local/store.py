"""What a process knows by itself: local counters, callers seen lately, remembered rejections, and usage to send.

One `LocalCounters` serves all threads and event loops of a process. `sync` decides by it, and keeps it up to date.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from threading import Lock
from typing import Final
from weakref import WeakSet

from ..base import Charge, Verdict, Version
from ..call import Call
from ..memory import MemoryEngine
from ..usage import UsageBuffer
from .call import Source, states_of
from .counter import LocalCounter, LocalVerdict, is_local, partition_of
from .rejections import RejectionCache
from .usage import LocalUsage

#: Seconds between two searches for counters that are not used; fewer if there are too many counters.
TIDY_SECONDS, CROWDED_SECONDS = 10.0, 1.0

#: A purely local counter is synced with the memory engine after this many seconds, or a fraction of its window if that
#: is less.
LOCAL_INTERVAL, LOCAL_PARTS = 0.1, 50

#: The local counters of this process.
_ALL: Final[WeakSet[LocalCounters]] = WeakSet()


class VersionState:
    """When to ask the engine for the version of the rules, to notice new rules.

    interval: seconds after which it is asked in any case. Times are monotonic seconds.
    """

    def __init__(self, interval: float) -> None:
        self._interval, self._due_at = interval, -inf
        #: The latest version that the engine has confirmed.
        self._version: int | Version | None = None

    def is_current(self, version: int | Version | None, now: float) -> bool:
        """Return whether the engine has recently confirmed this version; `None` = no version is needed."""
        return version is None or (now < self._due_at and (version is self._version or version == self._version))

    def claim(self, version: int | Version, now: float) -> None:
        """Record that a call for the version is in progress, so that no other call is made for it."""
        if version == self._version:
            self._due_at = max(self._due_at, now + self._interval)

    def confirm(self, version: int | Version | None, now: float) -> None:
        """Record that the engine was called with this version at `now`, and it was current."""
        if version is not None:
            self._version, self._due_at = version, max(now + self._interval, self._due_at)


class LocalCounters:
    """The local counters and remembered rejections of one process.

    denial_memory: maximum seconds for which a rejection is remembered; 0 = not at all. ask_interval: seconds after
    which the engine is called in any case, to notice new rules. max_counters: maximum number of counters. clock:
    monotonic seconds. memory: decides what is purely local. usage_buffer: usage that the engine has not counted.
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
        self.memory = memory or MemoryEngine(max_counters=max_counters, counts_usage=False)
        self._usage_buffer = UsageBuffer() if usage_buffer is None else usage_buffer
        self.max_counters, self.now = max_counters, clock
        self.clear()
        _ALL.add(self)

    def clear(self) -> None:
        """Drop everything, also unsent units: in a forked process they belong to the parent."""
        self.lock = Lock()
        self.memory = self.memory.fresh_copy()
        #: The counters that are synced with the engine, by name.
        self.by_name: dict[str, LocalCounter] = {}
        #: The purely local ones. They are synced with the memory engine in the same way, without waiting.
        self.local: dict[str, LocalCounter] = {}
        #: The partitions of `by_name`, with the number of counters of each.
        self.partitions: dict[str, int] = {}
        #: The partitions of callers that the engine was asked about, and until when they "come again".
        self.seen: dict[str, float] = {}
        self.rejections = RejectionCache(self._denial_memory, self.max_counters)
        self.usage = LocalUsage(self._usage_buffer, self.now)
        self.version_state = VersionState(self._ask_interval)
        self._swept_at = -inf

    def comes_again(self, call: Call, now: float) -> bool:
        """Return whether a caller of a call was seen lately, and note its callers as seen. Call it under the lock."""
        seen, partitions, template, comes_again = self.seen, call.partitions, call.template, False
        if len(seen) >= self.max_counters:
            seen.clear()
        for place in template.callers:
            if now < seen.get(partitions[place], 0.0):
                comes_again = True
        until = now + template.sync_interval
        for place in template.callers:
            seen[partitions[place]] = until
        return comes_again

    def add(self, name: str, counter: LocalCounter) -> None:
        """Add a counter."""
        partition = partition_of(counter.charge)
        self.by_name[name] = counter
        self.partitions[partition] = self.partitions.get(partition, 0) + 1

    def drop(self, name: str) -> None:
        """Drop a counter, if it is known."""
        if (counter := self.by_name.pop(name, None)) is not None:
            partition = partition_of(counter.charge)
            self.partitions[partition] -= 1
            if not self.partitions[partition]:
                del self.partitions[partition]

    def source(self, name: str, charge: Charge, version: int | Version | None, now: float) -> Source:
        """Return what decides this charge here; `None` = the engine must decide it. Call it under the lock."""
        if charge[8] is None:
            return self.rejections.find(name, charge, version, now)
        return self.counter(name, charge, now)

    def counter(self, name: str, charge: Charge, now: float) -> LocalCounter | None:
        """Return the counter that decides this charge here, if it is known well enough. Call it under the lock."""
        if (charge[8] or 0.0) < 0:
            return self._local_counter(name, charge, now)
        counter = self.by_name.get(name)
        return counter if counter is not None and counter.covers(charge[1].quota, now) else None

    def _local_counter(self, name: str, charge: Charge, now: float) -> LocalCounter:
        """Return a purely local counter that is up to date."""
        counter = self.local.get(name)
        if counter is None:
            self.sweep(now)
            if len(self.local) >= self.max_counters:
                self._sync_local(self.local.popitem()[1], now)
            charge = charge._replace(key=name.removesuffix(charge.limit.tag))
            counter = self.local[name] = LocalCounter(charge)
        rejects = counter.rejects(charge) and not counter.still_rejects(charge, now)
        if rejects or not counter.covers(charge.limit.quota, now):
            self._sync_local(counter, now, charge)
        return counter

    def _sync_local(self, counter: LocalCounter, now: float, charge: Charge | None = None) -> None:
        """Send the units of a purely local counter to the memory engine; renew it with the result for this charge."""
        if carried := counter.unsynced(now):
            at_us = counter.time_at(counter.spent_at)
            self.memory.check([counter.carry(carried)], now_us=at_us)
            counter.acknowledge(carried)
        if charge is not None:
            [state] = states_of(self.memory.look(Call.of([charge._replace(key=counter.charge.key)])))
            interval = min(LOCAL_INTERVAL, charge.limit.window_us / 1_000_000 / LOCAL_PARTS)
            counter.renew(charge._replace(sync_interval=interval), state, 0, now, now)

    @property
    def is_full(self) -> bool:
        """True if no more counters can be added."""
        return len(self.by_name) >= self.max_counters

    def sweep(self, now: float) -> bool:
        """Drop counters that are not used, unless that was done just now. Returns whether it was done."""
        is_crowded = self.is_full or len(self.local) >= self.max_counters
        if now < self._swept_at + (CROWDED_SECONDS if is_crowded else TIDY_SECONDS):
            return False
        self._swept_at = now
        for name in [name for name, counter in self.by_name.items() if counter.is_idle(now)]:
            self.drop(name)
        for name in [name for name, counter in self.local.items() if now >= counter.due_at]:
            self._sync_local(self.local.pop(name), now)
        return True

    def refund(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Refund units that no call has carried. Return the other verdicts, which the engine must refund."""
        with self.lock:
            return [verdict for verdict in verdicts if not self.refund_here(verdict)]

    def refund_here(self, verdict: Verdict) -> bool:
        """Refund units that no call has carried; return whether it was done. Call it under the lock."""
        if isinstance(verdict, LocalVerdict) and verdict.is_unsent and verdict.counter is not None:
            verdict.counter.refund(verdict.spent)
            verdict.mark_refunded()
            return True
        name = verdict.charge.key + verdict.charge.limit.tag
        if is_local(verdict.charge):
            self.memory.refund([verdict])
            if name in self.local:
                self.local[name].due_at = -inf
            return True
        if name in self.by_name:
            self.by_name[name].expect_refund()
        return False

    def peek(self, charges: Sequence[Charge], replies: Iterable[Verdict]) -> list[Verdict]:
        """Return the verdicts that these charges would get now.

        replies: the engine's verdicts on those that are not purely local. They do not include unsent units.
        """
        verdicts, theirs = [], iter(replies)
        with self.lock:
            now = self.now()
            for charge in charges:
                name = charge.key + charge.limit.tag
                if is_local(charge):
                    if name in self.local:
                        self._sync_local(self.local[name], now)
                    verdicts += self.memory.peek([charge])
                    continue
                verdicts.append(verdict := next(theirs))
                if charge.sync_interval is not None and (counter := self.by_name.get(name)) is not None:
                    counter.deduct(verdict, now)
        return verdicts

    def forget(self, charges: Iterable[Charge]) -> None:
        """Drop what is known about these counters."""
        charges = list(charges)
        with self.lock:
            for charge in charges:
                name = charge.key + charge.limit.tag
                self.drop(name)
                self.local.pop(name, None)
                self.seen.pop(partition_of(charge), None)
                self.rejections.forget(name)
        self.memory.reset(charges)


def _forget_in_child() -> None:
    for counters in _ALL:
        counters.clear()


os.register_at_fork(after_in_child=_forget_in_child)
