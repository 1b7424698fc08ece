"""MemoryEngine: the algorithms' Python steps on a dict, behind a lock. For one process: tests, fallback, tools."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final, NamedTuple
from uuid import uuid4

from ...exceptions import StaleRules
from ...locks import freed_by_fork
from .. import usage
from ..algorithms import STEPS, State
from ..base import Charge, UsageCount, Verdict, Version, as_version, check_units, leases
from ..limits import EXACT, Terms, check_time
from ..partition_stats import MINUTE_US, MemoryPartitions
from ..usage.refusals import RecentRefusals, Refusal, latest

#: Usage that is not collected is kept for 8 days, as in Redis.
USAGE_MINUTES: Final = 8 * 1_440

#: The ids of counts that a process has held are known for a day, as in Redis.
HELD_US: Final = 86_400_000_000


class _Counter(NamedTuple):
    state: State
    expires_us: int


class _CounterState(NamedTuple):
    """A charge and the level that its counter stands at; `at_us` is ahead of now where the clock ran back."""

    charge: Charge
    terms: Terms
    state: State | None
    remaining: int
    x: int
    y: int
    at_us: int
    delay: int
    passes: bool


class MemoryEngine:
    """The engine without Redis; decides exactly as RedisEngine does.

    clock: returns the time in microseconds since the Unix epoch; `None` = the system's.
    max_counters: counters to keep, about, the oldest being dropped; `None` = all that still say something.
    """

    def __init__(self, clock: Callable[[], int] | None = None, *, max_counters: int | None = None) -> None:
        self._clock = clock or (lambda: time.time_ns() // 1_000)
        self._lock = freed_by_fork(Lock())
        self._counters: dict[str, _Counter] = {}
        self._sweep_at = 1_000
        self._max_counters = max_counters
        self._version: Version | None = None
        self._minutes: dict[int, Counter[str]] = {}
        self._batches: dict[str, Counter[str]] = {}
        #: What is known of the partitions that were met.
        self.partitions = MemoryPartitions(self._clock)
        self._refusals = RecentRefusals()
        self._added: dict[str, int] = {}  # what was held, with the time until which its id is known

    def fresh_copy(self) -> MemoryEngine:
        """One of the same clock and size that knows nothing."""
        return MemoryEngine(self._clock, max_counters=self._max_counters)

    def clear(self) -> None:
        """Drop all counters and all usage. The version stays in force."""
        with self._lock:
            for stored in (self._counters, self._minutes, self._batches, self._added):
                stored.clear()
            self.partitions, self._refusals = MemoryPartitions(self._clock), RecentRefusals()

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        refused: bool = False,
        counts: usage.UsageCarry | None = None,
    ) -> list[Verdict]:
        """Decide and spend, all or nothing. Raises StaleRules if `version` is not the one in force.

        refused: the call is refused already: it is dealt with as if one more charge had refused it.
        counts: usage that this process has held; it is added once, however often it comes under the same id.
        """
        charges = list(charges)
        usage.labels_of(usage.lines_of(charges))  # a bad label is refused before anything is spent
        with self._lock:
            if version is not None:
                self._compare(as_version(version))
            now = self._now(now_us)
            states = self._counter_states(charges, now, spending=True)
            denied = refused or any(counter.charge.gating and not counter.passes for counter in states)
            verdicts = [self._decide_one(counter, now, denied, spending=True) for counter in states]
            if denied:
                self._refund(refund_if_denied)
            if field := usage.field_of(verdicts):
                self._refusals.record(verdicts, self._count(now // MINUTE_US, field, 1), now)
                self.partitions.note(verdicts, now)
            if counts:
                self._add_once(counts, now)
            return verdicts

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now; spends and counts nothing."""
        charges = list(charges)
        with self._lock:
            now = self._now(now_us)
            states = self._counter_states(charges, now, spending=False)
            denied = any(counter.charge.gating and not counter.passes for counter in states)
            return [self._decide_one(counter, now, denied, spending=False) for counter in states]

    def trial(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give, with what would be left after it; spends and counts nothing."""
        charges = list(charges)
        with self._lock:
            now, counters = self._now(now_us), self._counters
            self._counters = dict(counters)  # which it may spend from
            try:
                states = self._counter_states(charges, now, spending=True)
                denied = any(counter.charge.gating and not counter.passes for counter in states)
                return [self._decide_one(counter, now, denied, spending=True) for counter in states]
            finally:
                self._counters = counters

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent. A verdict is refunded once; what is past is let go."""
        with self._lock:
            self._refund(verdicts)

    def release(self, verdicts: Iterable[Verdict]) -> None:
        """End the leases of these verdicts; those of other algorithms are left alone."""
        self.refund(leases(verdicts))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys: their next request finds the full quota."""
        with self._lock:
            for charge in charges:
                self._counters.pop(_name(charge), None)

    def publish(self, version: int | Version) -> None:
        """Put a version in force, unless a later one is."""
        asked = as_version(version)
        with self._lock:
            if self._version is None or asked.order > self._version.order:
                self._version = asked

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed and name all batches that wait, the oldest first."""
        with self._lock:
            current = self._now(now_us) // MINUTE_US
            for minute in [minute for minute in self._minutes if minute < current]:
                self._batches[f"{minute}:{uuid4().hex}"] = self._minutes.pop(minute)
            return usage.in_order(self._batches)

    def read_usage(self, batch: str) -> list[UsageCount]:
        """The counts of one batch; empty once it was dropped."""
        return usage.counts_of(usage.minute_of(batch), self._batches.get(batch, {}))

    def drop_usage(self, batch: str) -> None:
        """Forget a batch that has been collected."""
        self._batches.pop(batch, None)

    def recent_refusals(self, limit: int = 100, rule: str | None = None) -> list[Refusal]:
        """Return whom the rules have refused lately, the latest first; at most so many. rule: by this one only."""
        with self._lock:
            return latest([self._refusals.remembered], self._clock(), limit, rule)

    def _now(self, now_us: int | None) -> int:
        if now_us is None:
            return self._clock()
        check_time(now_us)
        return now_us

    def _compare(self, version: Version) -> None:
        held = self._version
        if held is None:
            raise StaleRules(None)
        if held.order > version.order:
            raise StaleRules(held.number, held.epoch)
        self._version = version

    def _counter_states(self, charges: Sequence[Charge], now: int, *, spending: bool) -> list[_CounterState]:
        states = []
        for charge in charges:
            check_units(charge)
            counter = self._counters.get(_name(charge))
            state = counter.state if counter else None
            at = max(now, state[0]) if state else now  # time that runs backwards stands still
            terms, steps = charge.limit.terms_at(at, charge.max_delay), STEPS[charge.limit.algorithm]
            remaining, x, y = steps.look(state, at, terms)
            if charge.carried and spending:
                x, before = steps.spend(x, charge.carried, terms), x
                state = steps.store(x, y, at, terms, state, charge.carried, x - before)
                remaining, x, y = steps.look(state, at, terms)
            delay = steps.reset(x, y, at, terms, state, 0) if charge.limit.holds else 0
            in_time = delay <= terms.extra or not charge.limit.holds or not charge.cost
            states.append(
                _CounterState(charge, terms, state, remaining, x, y, at, delay, charge.cost <= remaining and in_time)
            )
        if len({_name(charge) for charge in charges}) != len(states):
            raise ValueError("charges: the same key and limit stand twice in one call; add up their costs instead.")
        return states

    def _decide_one(self, counter: _CounterState, now: int, denied: bool, *, spending: bool) -> Verdict:
        charge, terms, state, remaining, x, y, at, delay, passes = counter
        steps, cost, lead, spent = STEPS[charge.limit.algorithm], min(charge.cost, EXACT), at - now, 0
        spends = spending and cost > 0 and (not denied if passes else charge.count_refusals)
        if spends:
            x, before = steps.spend(x, cost, terms), x
            stored = steps.store(x, y, at, terms, state, cost, x - before)
            if passes:
                remaining, spent = remaining - cost, cost
            else:  # what did not fit may have pushed out what was there
                remaining, x, y = steps.look(stored, at, terms)
                state = stored
        reset = steps.reset(x, y, at, terms, state, spent)
        wait = None if cost > terms.capacity else 0
        if wait is not None and not passes:
            wait = steps.wait(x, y, at, cost, terms, state) if cost > remaining else 0
            wait = lead + (max(wait, reset - terms.extra) if charge.limit.holds else wait)
        if spends:
            self._store(_name(charge), _Counter(stored, at + reset), now)
        elif spending and charge.carried and state:
            self._store(_name(charge), _Counter(state, at + reset), now)
        elif spending and wait:
            self._extend(_name(charge), at + reset)
        left = remaining if spending else remaining - cost
        return Verdict(
            passes,
            0 if charge.limit.holds and reset > terms.extra else remaining,
            None if wait is None else wait / 1_000_000,
            (reset + lead if reset else 0) / 1_000_000,
            delay / 1_000_000 if passes else 0.0,
            passes and not denied and left < terms.soft_floor,
            now,
            charge,
            spent,
            at,
        )

    def _store(self, name: str, counter: _Counter, now: int) -> None:
        """Store a counter; whenever their number has doubled, drop those whose full quota is back."""
        self._counters[name] = counter
        if len(self._counters) > self._sweep_at:
            alive = {key: stored for key, stored in self._counters.items() if stored.expires_us > now}
            if self._max_counters is not None and len(alive) > self._max_counters:
                alive = dict(list(alive.items())[-self._max_counters :])
            self._counters, self._sweep_at = alive, max(1_000, 2 * len(alive))

    def _extend(self, name: str, until_us: int) -> None:
        """Spent under a higher quota, a counter would be forgotten before it passes by this one."""
        counter = self._counters.get(name)
        if counter and counter.expires_us < until_us:
            self._counters[name] = counter._replace(expires_us=until_us)

    def _refund(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            name, limit = _name(verdict.charge), verdict.charge.limit
            counter = self._counters.get(name)
            if counter and verdict.spent:
                spent, at = verdict.spent, verdict.spent_at_us
                state = STEPS[limit.algorithm].refund(counter.state, spent, at, limit.terms_at(at))
                if state:
                    self._counters[name] = counter._replace(state=state)
            verdict.mark_refunded()

    def _add_once(self, carry: usage.UsageCarry, now: int) -> None:
        self._added = {known: until for known, until in self._added.items() if until > now}
        if carry.id not in self._added:
            self._added[carry.id] = now + HELD_US
            for entry in carry.entries:
                self._refusals.record_local(entry, self._count(*entry), now)

    def _count(self, minute: int, field: str, calls: int) -> int:
        """Count calls, and return how many were counted under this field in this minute."""
        if minute not in self._minutes:
            self._forget_usage_before(minute - USAGE_MINUTES)
            self._minutes[minute] = Counter()
        field = usage.without_name(field)
        self._minutes[minute][field] += calls
        return self._minutes[minute][field]

    def _forget_usage_before(self, minute: int) -> None:
        """Drop what nobody collected, as Redis does."""
        self.partitions.forget_before(minute)
        self._minutes = {stored: counts for stored, counts in self._minutes.items() if stored >= minute}
        self._batches = {batch: counts for batch, counts in self._batches.items() if usage.minute_of(batch) >= minute}


def _name(charge: Charge) -> str:
    return charge.key + charge.limit.tag
