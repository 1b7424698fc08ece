"""Callers that come once in an interval: the engine decides, as for an exact rule, and only its reply is stored.

Most callers do not come twice in an interval, so local counters for them would never be used. The second request
makes a `LocalCounter` from the first one's reply. Everything here needs the lock of `LocalCounters`, unless its
docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from threading import Lock
from typing import Final

from ..base import Charge, Verdict
from ..templates import FilledCharges, FilledVerdicts
from .counter import LocalCounter, LocalCounterPool, partition_of
from .filled import SyncCharges, shared_counters, synced_charges
from .first_call import (
    FirstCall,
    FirstReply,
    at_us_of,
    lengthen_waits,
    own_partitions_of,
    partitions_of,
)

#: Seconds between two searches for local counters that are not used.
TIDY_SECONDS: Final = 10.0

_new = tuple.__new__  # what a named tuple calls in the end


class FirstCalls:
    """The latest reply for each partition. counters: the local counters.

    most: maximum number of partitions, and of counters. lock: of `LocalCounters`.
    """

    def __init__(self, counters: LocalCounterPool, most: int, lock: Lock) -> None:
        self._counters, self._most, self._lock = counters, most, lock
        self._replies: dict[str, FirstReply] = counters.replies
        #: Calls in progress. Local counters, also new ones, reserve their costs by a `FirstCall`.
        self._under_way: dict[FilledCharges | FirstCall, FirstCall | None] = {}
        self._latest_us = 0
        self._tidy_at = -inf

    def __len__(self) -> int:
        return len(self._replies)

    def is_first(self, charges: FilledCharges, now: float) -> bool:
        """Return whether too little is known to decide these charges, all synced, and none of the caller's is local.

        Then call the engine, and after that `end` or `finish_new`. The cost is reserved in local counters that all
        callers share. If there are none, no lock is needed: other threads meanwhile call the engine as for exact rules.
        """
        self._under_way[charges] = None
        template, partitions, replies, is_first = charges.template, charges.partitions, self._replies, False
        for place in template.own:
            reply = replies.get(partitions[place])
            if reply is None or now >= reply[0] + template.sync_interval:
                is_first = True
            elif reply[4] is not template:  # its counters may be others, which the next reply would lack
                is_first = False
                break
        counted = self._counters.partitions
        if is_first and (counted.keys().isdisjoint(partitions) or self._has_room(charges, now)):
            return True
        with self._lock:
            self.end(charges)
        return False

    def _has_room(self, charges: FilledCharges, now: float) -> bool:
        """Return whether the caller has no local counter of its own, and the shared local counters have room.

        Reserves the cost in the shared ones.
        """
        counted, partitions = self._counters.partitions, charges.partitions
        for place in charges.template.own:
            if partitions[place] in counted:
                return False
        shared = shared_counters(charges)
        counters, reserved = self._counters, dict[int, LocalCounter]()
        with self._lock:
            if self._under_way[charges] is not None:  # a counter was made just now
                return False
            for place, name, (quota, cost, _) in shared:
                counter = counters.get(name)
                if counter is None:
                    continue
                if now < counter.due_at and quota <= counter.at_most and cost <= quota - counter.used:
                    reserved[place] = counter
                elif counter.is_idle(now):
                    del counters[name]
                else:
                    return False
            call = self._under_way[charges] = FirstCall(charges, None, reserved, now, {})
            call.changes = counters.changes
        return True

    def note(self, charges: Sequence[Charge], verdicts: Sequence[Verdict], began: float, now: float) -> None:
        """Store the engine's reply. Until the interval ends, it is not called again, so no wait is shorter."""
        partitions: Sequence[str]
        if type(verdicts) is FilledVerdicts:
            at_us, _, waits, *_ = verdicts.states
            template, partitions = verdicts.charges.template, verdicts.charges.partitions
            if any(waits):
                lengthen_waits(charges, verdicts, began - now)
        else:
            at_us, template, partitions = at_us_of(verdicts), None, partitions_of(charges)
            lengthen_waits(charges, verdicts, began - now)
        replies = self._replies
        if at_us < self._latest_us:  # another thread was faster
            partitions = [name for name in partitions if not self._is_later(replies.get(name), at_us, began)]
        else:
            self._latest_us = at_us
        if len(replies) + len(partitions) > self._most:
            replies.clear()
        replies.update(dict.fromkeys(partitions, _new(FirstReply, (began, now, charges, verdicts, template))))
        if now >= self._tidy_at:
            self._tidy(now)

    def _tidy(self, now: float) -> None:
        """Drop counters that are not used, and expired replies, which most callers leave."""
        self._tidy_at = now + TIDY_SECONDS
        self._counters.forget_idle(now)
        for name in [name for name, reply in self._replies.items() if now >= reply.began + reply.interval]:
            del self._replies[name]

    @staticmethod
    def _is_later(reply: FirstReply | None, at_us: int, began: float) -> bool:
        """Return whether a reply is later. If it was stored before our call began, the clock has jumped: False."""
        return reply is not None and reply.ended >= began and at_us_of(reply.verdicts) > at_us

    def finish(self, call: FirstCall, verdicts: Sequence[Verdict], now: float) -> None:
        """Store the reply to a call. It does not include counters that were added or removed meanwhile."""
        self._under_way.pop(call, None)
        call.finish(verdicts, self._counters, now)
        if call.is_all_counted:
            if type(verdicts) is not FilledVerdicts or any(verdicts.states.waits):
                lengthen_waits(call.charges, verdicts, call.began - now)
            return
        if call.changes != self._counters.changes:
            self._drop_older(call.charges, verdicts)
            lengthen_waits(call.charges, verdicts, call.began - now)
            return
        self.note(call.charges, verdicts, call.began, now)
        if call.comes_again:  # changes by other callers of shared counters do not matter to it
            self.count(call.charges, call.synced, now)

    def fail(self, call: FirstCall) -> None:
        """Record that a call got no reply."""
        self._under_way.pop(call, None)
        call.fail()

    def end(self, charges: FilledCharges) -> None:
        """Record that a call after `is_first` was not made, or got no reply."""
        if (call := self._under_way.pop(charges, None)) is not None:
            call.fail()

    def finish_new(
        self, charges: FilledCharges, verdicts: Sequence[Verdict], began: float, now: float, changes: int
    ) -> None:
        """Store the reply to a call after `is_first`. changes: of the counters when it began."""
        call = self._under_way.pop(charges, None)
        if call is not None:  # local counters get the reply, also those made meanwhile
            call.finish(verdicts, self._counters, now)
            changes = call.changes
        if changes == self._counters.changes:
            self.note(charges, verdicts, began, now)
        elif call is not None:
            self._drop_older(charges, verdicts)
        else:  # a counter may have been added or removed, which the reply lacks
            self._tell_counters(charges, verdicts, began)

    def _tell_counters(self, charges: Sequence[Charge], verdicts: Sequence[Verdict], began: float) -> None:
        """Add the charges of a call to local counters that were made after it began."""
        synced = synced_charges(charges)
        assert synced is not None
        FirstCall(charges, synced, {}, began, {}).finish(verdicts, self._counters, began)
        self._drop_older(charges, verdicts)

    def _drop_older(self, charges: Sequence[Charge], verdicts: Sequence[Verdict]) -> None:
        """Drop replies that lack the charges of this call, whose own reply is not stored."""
        for partition in partitions_of(charges):
            reply = self._replies.get(partition)
            if reply is not None and at_us_of(reply.verdicts) <= at_us_of(verdicts):
                del self._replies[partition]

    def count(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> bool:
        """Make local counters for charges without one, if replies have the data. Returns whether all have one now."""
        made: dict[str, LocalCounter] = {}
        for partition, name, (_, _, interval) in zip(partitions_of(charges), *synced, strict=True):
            if name not in self._counters:
                reply = self._replies.get(partition)
                if reply is None or now >= reply.began + interval or (counter := reply.counter_of(name)) is None:
                    return False
                made[name] = counter
        if len(self._counters) + len(made) > self._most:
            return False
        for name, counter in made.items():
            self._counters[name] = counter
            self._reserve(name, counter)
        return True

    def is_due(self, names: Sequence[str], now: float) -> bool:
        """Return whether one of these local counters must be synced, and no call is syncing it."""
        counters = self._counters
        return any(now >= (each := counters[name]).due_at and each.asked_by is None for name in names)

    def _reserve(self, name: str, counter: LocalCounter) -> None:
        """Reserve in a new local counter what calls in progress may charge."""
        for key, call in self._under_way.copy().items():
            if isinstance(key, FirstCall):
                call = key
            elif call is None:
                synced = synced_charges(key)
                if synced is None or name not in synced.names:
                    continue
                call = self._under_way[key] = FirstCall(key, synced, {}, 0.0, {})
            if call is not None and name in call.synced.names:
                place = call.synced.names.index(name)
                counter.reserve(call.synced.terms[place][1])
                call.reserved[place] = counter

    def start(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> FirstCall | None:
        """Return a call that sends all of these charges to the engine; `None` if the general path is needed.

        Local counters of the charges must have room, or be due: then the call carries their unsent units. If these were
        charged under wider limits, `SyncCall` sends them.
        """
        counters, reserved, due = self._counters, dict[int, LocalCounter](), dict[int, LocalCounter]()
        self._count_others(charges, synced, now)
        for place, (name, (quota, cost, _)) in enumerate(zip(*synced, strict=True)):
            counter = counters.get(name)
            if counter is None:
                continue
            if now >= counter.due_at:
                if counter.is_idle(now):
                    del counters[name]
                elif counter.asked_by is not None or quota < counter.widest:
                    return None
                else:
                    due[place] = counter
            elif quota > counter.at_most or cost > quota - counter.used:
                return None
            else:
                reserved[place] = counter
        if len(reserved) == len(charges) or len(counters) >= self._most:
            return None
        call = FirstCall(charges, synced, reserved, now, due)
        call.changes = counters.changes
        self._under_way[call] = None
        if not call.is_all_counted:
            longest = max(interval for _, _, interval in synced.terms)
            met = [self._replies.get(partition) for partition in own_partitions_of(charges)]
            call.comes_again = bool(met) and all(reply and now < reply.began + longest for reply in met)
        return call

    def _count_others(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> None:
        """Make local counters for the other counters of these partitions, because their reply will be replaced.

        Not for partitions that callers share, if another counter distinguishes these callers. Otherwise each caller,
        who may come only once, would have the cost of local counting.
        """
        names, template = set(synced.names), charges.template if type(charges) is FilledCharges else None
        for partition in set(partitions_of(charges)):
            reply = self._replies.get(partition)
            if reply is not None and reply.template is not None and reply.template is template:
                continue
            if reply is None or (other := synced_charges(reply.charges)) is None or other.names == synced.names:
                continue
            if (own := own_partitions_of(reply.charges)) and partition not in own:
                continue
            for charge, name, (_, _, interval) in zip(reply.charges, *other, strict=True):
                if partition_of(charge) != partition or name in names or name in self._counters:
                    continue
                if len(self._counters) >= self._most:
                    return
                if now < reply.began + interval and (counter := reply.counter_of(name)):
                    self._counters[name] = counter
                    self._reserve(name, counter)

    def forget(self, charge: Charge) -> None:
        """Drop the reply about this charge's partition."""
        self._replies.pop(partition_of(charge), None)
        self._counters.changes += 1
