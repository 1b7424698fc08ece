"""Counters that a process has met once in an interval: the engine has decided, and its reply stands for them.

Most callers do not come again within an interval. So a first request is decided as by an exact rule, and nothing but a
note of that call is kept. A second request makes a `LocalCounter` of what the reply has said. Everything here is done
under the lock of `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ..base import Charge, Verdict
from ..usage import UsageCarry
from .counter import LocalCounter
from .denials import SWEEP_SECONDS


class FirstCall:
    """A call of the engine about counters that were not known. Times are monotonic seconds.

    names: of the counters, in the order of the charges. began, ended: when the call was made and has returned.
    expires_at: when its reply stands for none of them any more. verdicts: the reply; `None` = the call is under way.
    reserved: counters that have to hear what a charge of this call has spent, each with the charge's place.
    counts: usage that travels with the call.
    """

    __slots__ = ("began", "charges", "counts", "ended", "expires_at", "names", "reserved", "verdicts")

    def __init__(
        self,
        charges: Sequence[Charge],
        names: list[str],
        reserved: list[tuple[LocalCounter, int]],
        began: float,
        expires_at: float,
    ) -> None:
        self.charges, self.names, self.reserved = charges, names, reserved
        self.began = self.ended = began
        self.expires_at = expires_at
        self.verdicts: Sequence[Verdict] | None = None
        self.counts: UsageCarry | None = None

    def stands_for(self, charge: Charge, now: float) -> bool:
        """Return whether its reply still says enough about the counter of this charge."""
        return self.verdicts is not None and now < self.began + (charge.sync_interval or 0.0)


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

    def start(self, charges: Sequence[Charge], now: float) -> FirstCall | None:
        """Return a call that asks the engine for all of these charges; `None` where that takes more than asking.

        Counters that are counted here must have room for it as well. They hear at the end what was spent there.
        """
        names: list[str] = []
        reserved: list[tuple[LocalCounter, int]] = []
        longest = 0.0
        for charge in charges:
            interval, name = charge.sync_interval, charge.key + charge.limit.tag
            if interval is None or interval <= 0 or charge.carried or type(charge.cost) is not int or charge.cost < 0:
                return None
            earlier = self._by_name.get(name)
            if earlier is not None and earlier.verdicts is None:
                return None
            counter = self._counters.get(name)
            if counter is not None and not counter.is_idle(now):
                if not (counter.covers(charge, now) and charge.cost <= counter.left(charge)):
                    return None
                reserved.append((counter, len(names)))
            longest = max(longest, interval)
            names.append(name)
        if len(reserved) == len(names) or not self._has_room(len(names), now):
            return None
        call = FirstCall(charges, names, reserved, now, now + longest)
        self._keep(call)
        return call

    def _keep(self, call: FirstCall) -> None:
        """Note the call under all names that are not counted here."""
        counted = set()
        for counter, place in call.reserved:
            counter.reserve(call.charges[place].cost)
            counted.add(call.names[place])
        for name in call.names:
            if name not in counted:
                self._by_name[name] = call
                self._counters.pop(name, None)

    def finish(self, call: FirstCall, verdicts: Sequence[Verdict], now: float) -> None:
        """Note the engine's reply. Nobody here asks again before the interval is over, so that no wait is shorter."""
        call.verdicts, call.ended = verdicts, now
        for counter, place in call.reserved:
            verdict = verdicts[place]
            counter.resolve_reservation(call.charges[place].cost, verdict.spent, verdict.at_us)
            verdict.remaining = max(min(verdict.remaining, counter.left(verdict.charge)), 0)
        for verdict in verdicts:
            if verdict.retry_after:
                until = call.began + (verdict.charge.sync_interval or 0.0)
                verdict.retry_after = max(verdict.retry_after, until - now)

    def fail(self, call: FirstCall) -> None:
        """Note that the engine has given no reply."""
        for counter, place in call.reserved:
            counter.resolve_reservation(call.charges[place].cost, 0, 0)
        for name in call.names:
            if self._by_name.get(name) is call:
                del self._by_name[name]

    def stands_for(self, name: str, charge: Charge, now: float) -> bool:
        """Return whether a reply still says enough about this counter."""
        call = self._by_name.get(name)
        return call is not None and call.stands_for(charge, now)

    def counter_of(self, name: str, charge: Charge, now: float) -> LocalCounter | None:
        """Return what is counted from now on for a name that was met before; `None` if it was not, or long ago.

        Where its first call is still under way, the engine must be asked, and the counter hears of that call's end.
        """
        call = self._by_name.pop(name, None)
        if call is None or not (call.verdicts is None or call.stands_for(charge, now)):
            return None
        place = call.names.index(name)
        if call.verdicts is None:
            counter = LocalCounter(call.charges[place])
            counter.reserve(call.charges[place].cost)
            call.reserved.append((counter, place))
        else:
            verdict = call.verdicts[place]
            counter = LocalCounter(verdict.charge)
            counter.apply_reply(verdict, 0, call.began, call.ended, verdict.charge.sync_interval or 0.0)
        self._counters[name] = counter
        return counter

    def expire(self, name: str) -> None:
        """Note that the engine's reply about this counter holds no more."""
        call = self._by_name.get(name)
        if call is not None:
            call.began = -inf

    def sweep(self, now: float) -> None:
        """Forget replies that stand for nothing any more."""
        self._by_name = {
            name: call for name, call in self._by_name.items() if call.verdicts is None or now < call.expires_at
        }

    def _has_room(self, number: int, now: float) -> bool:
        full = self._max_counters - number
        if len(self._by_name) + len(self._counters) > full and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self.sweep(now)
        return len(self._by_name) + len(self._counters) <= full
