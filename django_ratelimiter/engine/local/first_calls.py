"""Callers who come once in an interval: the engine decides, as by an exact rule, and its reply is kept, nothing else.

Most callers do not come again within an interval, so that counters made for them would never be used. The second
request makes a `LocalCounter` of what the first one's reply has said. What is not said to need no lock is done under
that of `LocalCounters`.
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

#: Seconds after which it is looked what is counted here and used no more.
TIDY_SECONDS: Final = 10.0

_new = tuple.__new__  # what a named tuple calls in the end


class FirstCalls:
    """The latest reply about each partition. counters: those that are counted here.

    most: partitions to keep, and counters. lock: of `LocalCounters`.
    """

    def __init__(self, counters: LocalCounterPool, most: int, lock: Lock) -> None:
        self._counters, self._most, self._lock = counters, most, lock
        self._replies: dict[str, FirstReply] = counters.replies
        #: Calls that are under way. Counters reserve what they may spend, by a `FirstCall`, also those made meanwhile.
        self._under_way: dict[FilledCharges | FirstCall, FirstCall | None] = {}
        self._latest_us = 0
        self._tidy_at = -inf

    def __len__(self) -> int:
        return len(self._replies)

    def is_first(self, charges: FilledCharges, now: float) -> bool:
        """Return whether too little is known to decide these charges, all synced, and none of this caller's is counted.

        Then ask the engine, and tell `end` or `finish_new` what comes of it. What is spent of counters that all callers
        share is reserved, where they are counted here. Without such counters it needs no lock: what other threads ask
        meanwhile, they ask exactly.
        """
        self._under_way[charges] = None
        template, partitions, replies, is_first = charges.template, charges.partitions, self._replies, False
        for place in template.own:
            reply = replies.get(partitions[place])
            if reply is None or now >= reply[0] + template.sync_interval:
                is_first = True
            elif reply[4] is not template:  # it may know of other counters, which its successor would not
                is_first = False
                break
        counted = self._counters.partitions
        if is_first and (counted.keys().isdisjoint(partitions) or self._has_room(charges, now)):
            return True
        with self._lock:
            self.end(charges)
        return False

    def _has_room(self, charges: FilledCharges, now: float) -> bool:
        """Return whether nothing of this caller's alone is counted here, and what all callers share has room.

        What it spends there is reserved.
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
        """Note the engine's reply. Nobody here asks again before the interval is over, so that no wait is shorter."""
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
        """Forget counters that nobody uses, and replies that decide nothing any more, which most callers leave."""
        self._tidy_at = now + TIDY_SECONDS
        self._counters.forget_idle(now)
        for name in [name for name, reply in self._replies.items() if now >= reply.began + reply.interval]:
            del self._replies[name]

    @staticmethod
    def _is_later(reply: FirstReply | None, at_us: int, began: float) -> bool:
        """Return whether a reply was made after this time. If it was here before our call began, clocks have jumped."""
        return reply is not None and reply.ended >= began and at_us_of(reply.verdicts) > at_us

    def finish(self, call: FirstCall, verdicts: Sequence[Verdict], now: float) -> None:
        """Note the reply to a call. It knows nothing of a counter that has come or gone meanwhile."""
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
        if call.comes_again:  # what others who share a counter have asked since is no news to it any more
            self.count(call.charges, call.synced, now)

    def fail(self, call: FirstCall) -> None:
        """Note that the engine has given no reply."""
        self._under_way.pop(call, None)
        call.fail()

    def end(self, charges: FilledCharges) -> None:
        """Note that a call which `is_first` has held of is not made, or has ended without a reply."""
        if (call := self._under_way.pop(charges, None)) is not None:
            call.fail()

    def finish_new(
        self, charges: FilledCharges, verdicts: Sequence[Verdict], began: float, now: float, changes: int
    ) -> None:
        """Note the reply to a call which `is_first` has held of. changes: of the counters when it began."""
        call = self._under_way.pop(charges, None)
        if call is not None:  # what is counted here hears of it, also if it was made meanwhile
            call.finish(verdicts, self._counters, now)
            changes = call.changes
        if changes == self._counters.changes:
            self.note(charges, verdicts, began, now)
        elif call is not None:
            self._drop_older(charges, verdicts)
        else:  # perhaps one of these came or went, of which the reply knows nothing
            self._tell_counters(charges, verdicts, began)

    def _tell_counters(self, charges: Sequence[Charge], verdicts: Sequence[Verdict], began: float) -> None:
        """Tell what is counted here by now what a call has spent that began without it."""
        synced = synced_charges(charges)
        assert synced is not None
        FirstCall(charges, synced, {}, began, {}).finish(verdicts, self._counters, began)
        self._drop_older(charges, verdicts)

    def _drop_older(self, charges: Sequence[Charge], verdicts: Sequence[Verdict]) -> None:
        """Forget replies that know nothing of what a call has spent which is not noted itself."""
        for partition in partitions_of(charges):
            reply = self._replies.get(partition)
            if reply is not None and at_us_of(reply.verdicts) <= at_us_of(verdicts):
                del self._replies[partition]

    def count(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> bool:
        """Begin to count charges here, if replies have said enough of all that is not counted here; whether it is."""
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
        """Return whether the engine is to be asked again about one of these counters, all known, and nobody does."""
        counters = self._counters
        return any(now >= (each := counters[name]).due_at and each.asked_by is None for name in names)

    def _reserve(self, name: str, counter: LocalCounter) -> None:
        """Let a new counter keep what calls that are under way may spend there."""
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
        """Return a call that asks the engine for all of these charges; `None` where that takes more than asking.

        Counters that are counted here must have room for it as well, or be due: then the call carries what they owe,
        which is left to `SyncCall` where wider limits have spent it.
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
        """Begin to count here what is known of other counters of these partitions, for that reply will be forgotten.

        Not what callers share of whom another counter tells each apart: it would make each of them, who may come once,
        pay for what is counted here.
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
        """Know nothing of the partition of this charge any more."""
        self._replies.pop(partition_of(charge), None)
        self._counters.changes += 1
