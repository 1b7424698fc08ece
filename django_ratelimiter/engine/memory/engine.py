"""MemoryEngine: the algorithms' Python steps on a dict, behind a lock. For one process: tests, fallback, tools."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final
from uuid import uuid4

from ...exceptions import StaleRules
from .. import usage
from ..base import Charge, Counted, UsageCount, Verdict, Version, as_version, leases, receipts_of
from ..call import Answer, Call
from ..coroutines import ImmediateAdapter
from ..limits import check_time
from ..locks import freed_by_fork
from ..partition_stats import MINUTE_US, MemoryPartitions
from ..usage.rejections import RecentRejections, Rejection, latest
from .counters import MemoryCounters

#: Minutes for which usage is kept: 8 days, as in Redis, if this process has collected some in the last day; else the
#: latest hour, because no other process can collect it.
USAGE_MINUTES: Final = 8 * 1_440
UNCOLLECTED_MINUTES: Final = 60

#: The ids of counts that processes have sent are kept for a day, as in Redis.
HELD_US: Final = 86_400_000_000

#: The system clock may be this far behind before it counts as set back: it is read before the monotonic one.
SET_BACK_US: Final = 1_000_000


class MemoryEngine:
    """The engine without Redis. It decides exactly as RedisEngine does.

    clock: returns the time in microseconds since the Unix epoch; `None` = the system clock. If that is set back, only
    windows that follow it go back too, where their time stands still; the others go on by the monotonic clock.
    max_counters: about how many counters to keep, the oldest are dropped; `None` = all that are not expired.
    counts_usage: False = labels are ignored, for a tool that counts by itself.
    """

    def __init__(
        self,
        clock: Callable[[], int] | None = None,
        *,
        max_counters: int | None = None,
        counts_usage: bool = True,
    ) -> None:
        self._clock = clock or (lambda: time.time_ns() // 1_000)
        self._offset: int | None = 0 if clock is None else None  # of the monotonic clock; `None` = it is not used
        self._lock = freed_by_fork(Lock())
        self._counters = MemoryCounters(max_counters)
        self._max_counters = max_counters
        self._counts_usage = counts_usage
        self._version: Version | None = None
        self._minutes: dict[int, Counter[str]] = {}
        self._batches: dict[str, Counter[str]] = {}
        self._collected_at: int | None = None  # the minute of the latest collection
        self._callers = 0  # counted apart since then
        #: The partitions that the rules have matched.
        self.partitions: MemoryPartitions = MemoryPartitions(self._clock)
        self._rejections = RecentRejections()
        self._added: dict[str, int] = {}  # ids of received counts, with their expiry time

    def fresh_copy(self) -> MemoryEngine:
        """Return an empty engine with the same clock and size."""
        clock = self._clock if self._offset is None else None
        return MemoryEngine(clock, max_counters=self._max_counters, counts_usage=self._counts_usage)

    def to_async(self) -> ImmediateAdapter:
        """Return the engine for event loops: this one, as it never blocks."""
        return ImmediateAdapter(self)

    def clear(self) -> None:
        """Drop all counters and all usage. The version stays."""
        with self._lock:
            for stored in (self._counters, self._minutes, self._batches, self._added):
                stored.clear()
            self.partitions, self._rejections = MemoryPartitions(self._clock), RecentRejections()

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        reject: bool = False,
        counts: usage.UsageCarry | None = None,
    ) -> Sequence[Verdict]:
        """Decide and charge, all or nothing. Raises StaleRules if `version` is older than the current one.

        reject: the call is rejected already: its charges are handled as if one more charge had rejected it.
        counts: usage that this process has kept; it is added once, even if the same id is sent several times.
        """
        call = charges if type(charges) is Call else Call.of(charges)
        with self._lock:
            if version is not None:
                self._compare(as_version(version))
            now = self._now(now_us)
            if call.returned:
                self._counters.refund(call.returned)
            named, ahead, taken = self._counters.named(call), self._ahead(now, now_us), [*call.wants]
            states = self._counters.decide(named, now, spending=True, reject=reject, ahead=ahead, wants=taken)
            answer = Answer.of(call, states, taken=taken or None)
            if reject:
                answer.reject()
            if answer.is_rejected:
                self._counters.refund(refund_if_denied)
            if self._counts_usage and (call.template.is_counted or call.so_far or call.settled):
                field = usage.field_of(answer, is_rejected=answer.is_rejected, so_far=call.so_far)
                for extra in usage.extras_after(call, answer, is_rejected=answer.is_rejected):
                    self._count(now // MINUTE_US, extra.field, extra.units)
                if field:
                    self._rejections.record(answer, field, self._count(now // MINUTE_US, field, 1), now)
                    pools, is_rejected = call.template.pools, answer.is_rejected
                    self.partitions.note(answer, pools, now, is_rejected=is_rejected, noted=call.noted)
            if counts:
                self._add_once(counts, now)
        return answer if call is charges else [*answer]

    def count_exempt(self, lines: Sequence[str], so_far: Sequence[Counted]) -> None:
        """Count a request of an exempt caller. lines: of the charges that were not made. so_far: see `Call`."""
        with self._lock:
            minute = self._now(None) // MINUTE_US
            self._count(minute, usage.joined(lines, "x" * len(lines), so_far, minute), 1)

    def look(self, call: Call, now_us: int | None = None) -> Answer:
        """Return the states that `check` would find now. Nothing is charged or counted."""
        with self._lock:
            named, now = self._counters.named(call), self._now(now_us)
            return Answer.of(call, self._counters.decide(named, now, spending=False, ahead=self._ahead(now, now_us)))

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now. Nothing is charged or counted."""
        return self.look(Call.of(charges), now_us).peeked()

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each. Units that no longer count are ignored."""
        with self._lock:
            receipts = receipts_of(verdicts)
            for entry in usage.refunded(receipts, self._now(None) // MINUTE_US) if self._counts_usage else ():
                self._count(*entry)
            self._counters.refund(receipts)

    def release(self, verdicts: Iterable[Verdict]) -> None:
        """Release the leases of these verdicts; verdicts of other algorithms are ignored."""
        with self._lock:
            self._counters.refund(leases(verdicts))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Delete the counters of these charges: their next request has the full quota."""
        with self._lock:
            for charge in charges:
                self._counters.forget(charge)

    def publish(self, version: int | Version) -> None:
        """Make a version current, unless a later one is."""
        asked = as_version(version)
        with self._lock:
            if self._version is None or asked.order > self._version.order:
                self._version = asked

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed, and return the names of all batches that wait, the oldest first."""
        with self._lock:
            current = self._now(now_us) // MINUTE_US
            for minute in [minute for minute in self._minutes if minute < current]:
                self._batches[f"{minute}:{uuid4().hex}"] = self._minutes.pop(minute)
            return usage.in_order(self._batches)

    def read_usage(self, batch: str) -> list[UsageCount]:
        """Return the counts of one batch; empty if it was dropped."""
        return usage.counts_of(usage.minute_of(batch), self._batches.get(batch, {}))

    def read_requests(self, batch: str) -> list[UsageCount]:
        """Return the counts of the requests of one batch, each once, whatever rules matched it."""
        return usage.requests_of(usage.minute_of(batch), self._batches.get(batch, {}))

    def drop_usage(self, batch: str) -> None:
        """Delete a batch that has been collected."""
        self._collected_at, self._callers = self._clock() // MINUTE_US, 0
        self._batches.pop(batch, None)

    def recent_rejections(self, limit: int = 100, rule: str | None = None) -> list[Rejection]:
        """Return the recent rejections, the latest first, at most `limit`. rule: only those by this rule."""
        with self._lock:
            return latest([self._rejections.remembered], self._clock(), limit, rule)

    def forget_tail(self, partition: str) -> int:
        """Delete the tail of a caller in the recent rejections, and return whether there was one."""
        return int(self._rejections.tails.pop(partition, None) is not None)

    def _now(self, now_us: int | None) -> int:
        if now_us is None:
            return self._clock()
        check_time(now_us)
        return now_us

    def _ahead(self, now: int, now_us: int | None) -> int:
        """Return by how many microseconds the system clock was set back since it was furthest; 0 = under a second."""
        if self._offset is None or now_us is not None:
            return 0
        monotonic = time.monotonic_ns() // 1_000
        ahead = monotonic + self._offset - now
        if ahead < 0:
            self._offset = now - monotonic
        return ahead if ahead > SET_BACK_US else 0

    def _compare(self, version: Version) -> None:
        stored = self._version
        if stored is None:
            raise StaleRules(None)
        if stored.order > version.order:
            raise StaleRules(stored.number, stored.epoch)
        self._version = version

    def _add_once(self, carry: usage.UsageCarry, now: int) -> None:
        self._added = {known: until for known, until in self._added.items() if until > now}
        if carry.id not in self._added:
            self._added[carry.id] = now + HELD_US
            for entry in carry.entries:
                self._rejections.record_local(entry, self._count(*entry), now)

    def _count(self, minute: int, field: str, calls: int) -> int:
        """Count calls, and return how many were counted under this field in this minute."""
        if minute not in self._minutes:
            is_collected = self._collected_at is not None and minute - self._collected_at <= 1_440
            self._forget_usage_before(minute - (USAGE_MINUTES if is_collected else UNCOLLECTED_MINUTES))
            self._minutes[minute] = Counter()
        field, fields = usage.without_name(field), self._minutes[minute]
        if usage.CALLER in field and not fields[field]:
            self._callers += 1
            field = usage.without_callers(field) if self._callers > usage.MAX_CALLERS else field
        fields[field] += calls
        return fields[field]

    def _forget_usage_before(self, minute: int) -> None:
        """Drop usage that was not collected."""
        self.partitions.forget_before(minute)
        self._minutes = {stored: counts for stored, counts in self._minutes.items() if stored >= minute}
        self._batches = {batch: counts for batch, counts in self._batches.items() if usage.minute_of(batch) >= minute}
