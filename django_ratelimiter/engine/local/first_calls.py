"""Counters that a process has met once in an interval: the engine has decided, and its reply stands for them.

Most callers do not come again within an interval. So a first request is decided as by an exact rule, and nothing but a
note of that call is kept. A second request makes a `LocalCounter` of what the reply has said. Everything here is done
under the lock of `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ..base import Charge, Verdict
from ..templates import FilledVerdicts
from ..usage import UsageCarry
from .counter import LocalCounter
from .denials import SWEEP_SECONDS
from .filled import SyncCharges


class FirstCall:
    """A call of the engine about counters that were not known. Times are monotonic seconds.

    synced: what is known of its charges. began, ended: when the call was made and has returned. verdicts: the reply;
    `None` = the call is under way. reserved: counters that have to hear what a charge of this call has spent, each
    with the charge's place. counts: usage that travels with the call.
    """

    __slots__ = ("began", "charges", "counts", "ended", "reserved", "synced", "verdicts")

    def __init__(
        self,
        charges: Sequence[Charge],
        synced: SyncCharges,
        reserved: list[tuple[LocalCounter, int]],
        began: float,
    ) -> None:
        self.charges, self.synced, self.reserved = charges, synced, reserved
        self.began = self.ended = began
        self.verdicts: Sequence[Verdict] | None = None
        self.counts: UsageCarry | None = None

    def stands_for(self, interval: float, now: float) -> bool:
        """Return whether its reply still says enough for an interval of so many seconds."""
        return self.verdicts is not None and now < self.began + interval

    def is_over(self, now: float) -> bool:
        """Return whether its reply stands for nothing any more."""
        return not any(self.stands_for(interval, now) for _, _, interval in self.synced.terms)

    def finish(self, verdicts: Sequence[Verdict], now: float) -> None:
        """Note the reply. Nobody here asks again before the interval is over, so that no wait is shorter."""
        self.verdicts, self.ended = verdicts, now
        if type(verdicts) is FilledVerdicts:
            self._finish_filled(verdicts, now)
            return
        for counter, place in self.reserved:
            verdict = verdicts[place]
            counter.resolve_reservation(self.synced.terms[place][1], verdict.spent, verdict.at_us)
            verdict.remaining = max(min(verdict.remaining, counter.left(verdict.charge)), 0)
        for verdict, (_, _, interval) in zip(verdicts, self.synced.terms, strict=True):
            if verdict.retry_after:
                verdict.retry_after = max(verdict.retry_after, self.began + interval - now)

    def _finish_filled(self, verdicts: FilledVerdicts, now: float) -> None:
        """Do so without making the verdicts."""
        states, terms = verdicts.states, self.synced.terms
        if any(states.waits):
            least = [int((self.began + interval - now) * 1_000_000) for _, _, interval in terms]
            waits = [max(wait, each) if wait > 0 else wait for wait, each in zip(states.waits, least, strict=True)]
            states = verdicts.states = states._replace(waits=waits)
        if self.reserved:
            remaining = list(states.remaining)
            for counter, place in self.reserved:
                quota, cost, _ = terms[place]
                spent = 0 if verdicts.is_denied or states.waits[place] else cost
                counter.resolve_reservation(cost, spent, states.at_us)
                remaining[place] = max(min(remaining[place], quota - counter.used), 0)
            verdicts.states = states._replace(remaining=remaining)


class FirstCalls:
    """The first calls by the names of counters. counters: those that are counted here, which share the room.

    max_counters: names to keep, of both.
    """

    def __init__(self, counters: dict[str, LocalCounter], max_counters: int) -> None:
        self._counters, self._max_counters = counters, max_counters
        self._by_name: dict[str, FirstCall] = {}
        self._sweep_at = -inf

    def __len__(self) -> int:
        return len(self._by_name)

    def start(self, charges: Sequence[Charge], synced: SyncCharges, now: float) -> FirstCall | None:
        """Return a call that asks the engine for all of these charges; `None` where that takes more than asking.

        Counters that are counted here must have room for it as well. They hear at the end what was spent there.
        """
        names, by_name, counters = synced.names, self._by_name, self._counters
        reserved: list[tuple[LocalCounter, int]] = []
        for place, name in enumerate(names):
            earlier = by_name.get(name)
            if earlier is not None and earlier.verdicts is None:
                return None
            if counters and (counter := counters.get(name)) is not None and not counter.is_idle(now):
                quota, cost, _ = synced.terms[place]
                if now >= counter.due_at or quota > counter.at_most or cost > quota - counter.used:
                    return None
                reserved.append((counter, place))
        if len(reserved) == len(names) or not self._has_room(len(names), now):
            return None
        call = FirstCall(charges, synced, reserved, now)
        self._keep(call)
        return call

    def _keep(self, call: FirstCall) -> None:
        """Note the call under all names that are not counted here."""
        names, terms = call.synced
        counted = {names[place] for _, place in call.reserved} if call.reserved else ()
        for counter, place in call.reserved:
            counter.reserve(terms[place][1])
        for name in names:
            if name not in counted:
                self._by_name[name] = call
                if self._counters:
                    self._counters.pop(name, None)

    def fail(self, call: FirstCall) -> None:
        """Note that the engine has given no reply."""
        for counter, place in call.reserved:
            counter.resolve_reservation(call.synced.terms[place][1], 0, 0)
        for name in call.synced.names:
            if self._by_name.get(name) is call:
                del self._by_name[name]

    def stands_for(self, name: str, interval: float, now: float) -> bool:
        """Return whether a reply still says enough about this counter for so many seconds."""
        call = self._by_name.get(name)
        return call is not None and call.stands_for(interval, now)

    def counter_of(self, name: str, interval: float, now: float) -> LocalCounter | None:
        """Return what is counted from now on for a name that was met before; `None` if it was not, or long ago.

        Where its first call is still under way, the engine must be asked, and the counter hears of that call's end.
        """
        call = self._by_name.pop(name, None)
        if call is None or not (call.verdicts is None or call.stands_for(interval, now)):
            return None
        place = call.synced.names.index(name)
        counter = LocalCounter(call.charges[place])
        if call.verdicts is None:
            counter.reserve(call.synced.terms[place][1])
            call.reserved.append((counter, place))
        else:
            counter.apply_reply(call.verdicts[place], 0, call.began, call.ended, call.synced.terms[place][2])
        self._counters[name] = counter
        return counter

    def expire(self, name: str) -> None:
        """Note that the engine's reply about this counter holds no more."""
        call = self._by_name.get(name)
        if call is not None:
            call.began = -inf

    def sweep(self, now: float) -> None:
        """Forget replies that stand for nothing any more."""
        over = {id(call) for call in self._by_name.values() if call.verdicts is not None and call.is_over(now)}
        self._by_name = {name: call for name, call in self._by_name.items() if id(call) not in over}

    def _has_room(self, number: int, now: float) -> bool:
        full = self._max_counters - number
        if len(self._by_name) + len(self._counters) > full and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self.sweep(now)
        return len(self._by_name) + len(self._counters) <= full
