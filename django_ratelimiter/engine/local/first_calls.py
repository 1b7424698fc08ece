"""Callers who come once in an interval: the engine decides, as by an exact rule, and its reply is kept, nothing else.

Most callers do not come again within an interval, so that counters made for them would never be used. The second
request makes a `LocalCounter` of what the first one's reply has said. What is not said to need no lock is done under
that of `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from ..base import Charge, Verdict
from ..templates import CallTemplate, FilledCharges, FilledVerdicts
from ..usage import UsageCarry
from .counter import LocalCounter, LocalCounterPool, partition_of
from .filled import SyncCharges, synced_charges, synced_template

#: Seconds after which it is looked what is counted here and used no more.
TIDY_SECONDS: Final = 10.0


#: Of how many templates it is kept which counters all callers share.
MAX_TEMPLATES: Final = 1_000

_new = tuple.__new__  # what a named tuple calls in the end


def partitions_of(charges: Sequence[Charge]) -> Sequence[str]:
    """Return the partitions of charges."""
    return charges.partitions if type(charges) is FilledCharges else [*map(partition_of, charges)]


def own_partitions_of(charges: Sequence[Charge]) -> list[str]:
    """Return those partitions of charges that tell callers apart."""
    if type(charges) is FilledCharges:
        return [charges.partitions[place] for place in charges.template.own]
    return [partition for partition in partitions_of(charges) if partition]


class FirstReply(NamedTuple):
    """What the engine said of charges. began, ended: when the call began and had returned, in monotonic seconds."""

    began: float
    ended: float
    charges: Sequence[Charge]
    verdicts: Sequence[Verdict]
    template: CallTemplate | None

    def counter_of(self, name: str) -> LocalCounter | None:
        """Return a counter by what was said about it; `None` if it was not charged."""
        synced = synced_charges(self.charges)
        assert synced is not None
        if name not in synced.names:
            return None
        place = synced.names.index(name)
        counter = LocalCounter(self.charges[place])
        counter.apply_reply(self.verdicts[place], 0, self.began, self.ended, synced.terms[place][2])
        return counter


class FirstCall:
    """A call of the engine about counters, not all of which are counted here.

    reserved: those that are, by place; they hear what the engine has spent there. began: in monotonic seconds. counts:
    usage that travels with the call. comes_again: all that tells its caller apart was met lately. changes: of the
    counters when it began.
    """

    __slots__ = ("began", "changes", "charges", "comes_again", "counts", "reserved", "synced")

    def __init__(
        self,
        charges: Sequence[Charge],
        synced: SyncCharges,
        reserved: dict[int, LocalCounter],
        began: float,
        changes: int = 0,
    ) -> None:
        self.charges, self.synced, self.reserved, self.began = charges, synced, reserved, began
        self.changes = 0
        self.counts: UsageCarry | None = None
        self.comes_again = False
        for place, counter in reserved.items():
            counter.reserve(synced.terms[place][1])

    def fail(self) -> None:
        """Note that the engine has given no reply."""
        for place, counter in self.reserved.items():
            counter.resolve_reservation(self.synced.terms[place][1], 0, 0)

    def finish(self, verdicts: Sequence[Verdict], counters: LocalCounterPool) -> None:
        """Note the reply. counters: those that are counted here by now."""
        remaining: dict[int, int] = {}
        for place, (name, (quota, cost, _)) in enumerate(zip(*self.synced, strict=True)):
            counter = self.reserved.get(place)
            if counter is not None:
                counter.resolve_reservation(cost, spent_at(verdicts, place), at_us_of(verdicts))
                remaining[place] = max(quota - counter.used, 0)
            elif (made := counters.get(name)) is not None:  # by another thread, without knowing of this call
                made.resolve_reservation(0, spent_at(verdicts, place), at_us_of(verdicts))
        if not remaining:
            return
        if type(verdicts) is FilledVerdicts:
            states = verdicts.states
            left = [min(each, remaining.get(place, each)) for place, each in enumerate(states.remaining)]
            verdicts.states = states._replace(remaining=left)
        else:
            for place, most in remaining.items():
                verdicts[place].remaining = min(verdicts[place].remaining, most)


def spent_at(verdicts: Sequence[Verdict], place: int) -> int:
    """Return what the charge at this place has spent."""
    if type(verdicts) is not FilledVerdicts:
        return verdicts[place].spent
    cost: int = verdicts.charges.template.templates[place].charge.cost
    return 0 if verdicts.is_denied or verdicts.states.waits[place] else cost


def at_us_of(verdicts: Sequence[Verdict]) -> int:
    """Return the engine's time, in microseconds."""
    return verdicts.states.at_us if type(verdicts) is FilledVerdicts else verdicts[0].at_us


class FirstCalls:
    """The latest reply about each partition. counters: those that are counted here.

    most: partitions to keep, and counters.
    """

    def __init__(self, counters: LocalCounterPool, most: int) -> None:
        self._counters, self._most = counters, most
        self._replies: dict[str, FirstReply] = counters.replies
        self._shared: dict[CallTemplate, list[str]] = {}  # the names of counters that all callers share
        self._latest_us = 0
        self._tidy_at = -inf

    def __len__(self) -> int:
        return len(self._replies)

    def is_first(self, charges: FilledCharges, now: float) -> bool:
        """Return whether too little is known to decide these charges, all of which are synced, and none counted here.

        Then ask the engine, and tell `note`. Needs no lock: what other threads ask meanwhile, they ask exactly.
        """
        if self.is_counted(charges):
            return False
        template, partitions, replies, is_first = charges.template, charges.partitions, self._replies, False
        for place in template.own:
            reply = replies.get(partitions[place])
            if reply is None or now >= reply[0] + template.sync_interval:
                is_first = True
            elif reply[4] is not template:  # it may know of other counters, which its successor would not
                return False
        return is_first

    def is_counted(self, charges: FilledCharges) -> bool:
        """Return whether one of these may be counted here, without making the names of what is the caller's own."""
        template, partitions, counters = charges.template, charges.partitions, self._counters
        for place in template.own:
            if partitions[place] in counters.partitions:
                return True
        shared = self._shared.get(template)
        if shared is None:
            if len(self._shared) >= MAX_TEMPLATES:
                self._shared.clear()
            names = zip(synced_template(template).names(partitions), template.templates, strict=True)  # type: ignore[union-attr]
            shared = self._shared[template] = [name for name, each in names if not each.is_split]
        return not counters.keys().isdisjoint(shared)

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
            self._tidy_at = now + TIDY_SECONDS
            self._counters.forget_idle(now)

    @staticmethod
    def _is_later(reply: FirstReply | None, at_us: int, began: float) -> bool:
        """Return whether a reply was made after this time. If it was here before our call began, clocks have jumped."""
        return reply is not None and reply.ended >= began and at_us_of(reply.verdicts) > at_us

    def finish(self, call: FirstCall, verdicts: Sequence[Verdict], now: float) -> None:
        """Note the reply to a call. It knows nothing of a counter that has come or gone meanwhile."""
        call.finish(verdicts, self._counters)
        if call.changes != self._counters.changes:
            lengthen_waits(call.charges, verdicts, call.began - now)
            return
        self.note(call.charges, verdicts, call.began, now)
        if call.comes_again:  # what others who share a counter have asked since is no news to it any more
            self.count(call.charges, call.synced, now)

    def tell_counters(self, charges: Sequence[Charge], verdicts: Sequence[Verdict], began: float) -> None:
        """Tell what is counted here by now what a call has spent that began without it."""
        synced = synced_charges(charges)
        assert synced is not None
        FirstCall(charges, synced, {}, began).finish(verdicts, self._counters)

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
        return True

    def start(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> FirstCall | None:
        """Return a call that asks the engine for all of these charges; `None` where that takes more than asking.

        Counters that are counted here must have room for it as well.
        """
        counters, reserved = self._counters, dict[int, LocalCounter]()
        self._count_others(charges, synced, now)
        for place, (name, (quota, cost, _)) in enumerate(zip(*synced, strict=True)):
            counter = counters.get(name)
            if counter is not None and counter.is_idle(now):
                del counters[name]
            elif counter is not None:
                if now >= counter.due_at or quota > counter.at_most or cost > quota - counter.used:
                    return None
                reserved[place] = counter
        if len(reserved) == len(charges) or len(counters) >= self._most:
            return None
        call = FirstCall(charges, synced, reserved, now)
        call.changes = counters.changes
        longest = max(interval for _, _, interval in synced.terms)
        met = [self._replies.get(partition) for partition in own_partitions_of(charges)]
        call.comes_again = bool(met) and all(reply and now < reply.began + longest for reply in met)
        return call

    def _count_others(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> None:
        """Begin to count here what is known of other counters of these partitions, for that reply will be forgotten."""
        names = set(synced.names)
        for partition in set(partitions_of(charges)):
            reply = self._replies.get(partition)
            if reply is None or (other := synced_charges(reply.charges)) is None or other.names == synced.names:
                continue
            for charge, name, (_, _, interval) in zip(reply.charges, *other, strict=True):
                if partition_of(charge) != partition or name in names or name in self._counters:
                    continue
                if len(self._counters) >= self._most:
                    return
                if now < reply.began + interval and (counter := reply.counter_of(name)):
                    self._counters[name] = counter

    def forget(self, charge: Charge) -> None:
        """Know nothing of the partition of this charge any more."""
        self._replies.pop(partition_of(charge), None)
        self._counters.changes += 1


def lengthen_waits(charges: Sequence[Charge], verdicts: Sequence[Verdict], passed: float) -> None:
    """Let those who are refused wait for the end of the interval at least. passed: seconds of it, negative."""
    if type(verdicts) is FilledVerdicts:
        least = [int(((charge.sync_interval or 0.0) + passed) * 1_000_000) for charge in charges]
        states = verdicts.states
        waits = [max(wait, each) if wait > 0 else wait for wait, each in zip(states.waits, least, strict=True)]
        verdicts.states = states._replace(waits=waits)
        return
    for verdict in verdicts:
        if verdict.retry_after:
            verdict.retry_after = max(verdict.retry_after, (verdict.charge.sync_interval or 0.0) + passed)
