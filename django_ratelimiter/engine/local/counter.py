"""Local counters: what a process knows of the engine's counters, and may charge by itself until the next sync.

Times are monotonic seconds of this process; names that end in `_us` are microseconds of the engine's clock. Nothing
here waits or is locked: see `store`.

These hold whenever the lock of `LocalCounters` is free:

    used       = what the engine reported with the latest reply + unsent + pending + what it has charged beside since
    unsent     = units charged here that no reply has confirmed; a call that fails leaves them unsent
    pending    = units of calls under way that are charged to this counter, so that nobody else uses them meanwhile
    is_syncing = one call is under way that carries `unsent`; no other call carries them
    charge     = the charge with the widest limit among those that made `unsent`; they are sent with its limit

What happens to them:

    event                       used               unsent     pending   else
    charged here                + cost             + cost
    a counted rejection here    up to the quota    the same
    a call begins               + cost                        + cost    if it syncs: is_syncing
    it fails, or is cancelled   - cost                        - cost    not is_syncing
    a reply to a sync           from the reply     - carried  - cost    not is_syncing, syncs + 1, due_at, known_quota
    a reply, not to a sync      - cost + charged              - cost    the charge is noted beside, with its time
    refunded before it is sent  - units            - units              what the engine has rejected is not known
    refunded in the engine                                              what the engine has rejected is not known
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import ceil, inf
from operator import attrgetter
from typing import Final, NamedTuple

from ..base import Charge, Verdict
from ..limits import Limit

#: Microseconds to wait for a rejected caller while another thread is calling the engine: its reply will come soon.
SOON_US: Final = 1_000

#: A quota that is wider than any.
ANY_QUOTA: Final = 1 << 62


class CounterState(NamedTuple):
    """The result for one charge, see `CounterStates`."""

    at_us: int
    remaining: int
    wait: int
    reset: int
    lead: int = 0

    @property
    def is_rejected(self) -> bool:
        """True if the charge is not allowed."""
        return self.wait > 0 or self.wait == -1


#: The values of a verdict, as its class takes them.
_parts_of: Final = attrgetter(*[each.name for each in fields(Verdict)])


class LocalVerdict(Verdict):
    """A verdict of this process.

    counter: that was charged; `None` = none was. syncs: how often it had been synced by then.
    """

    __slots__ = ("counter", "syncs")

    counter: LocalCounter | None
    syncs: int

    @classmethod
    def of(cls, verdict: Verdict, counter: LocalCounter | None, syncs: int) -> LocalVerdict:
        """Return this verdict as one of this process."""
        own = cls(*_parts_of(verdict))
        own.counter, own.syncs = counter, syncs
        return own

    @property
    def is_unsent(self) -> bool:
        """True if no call has carried its units, so that they can be refunded here."""
        counter = self.counter
        return counter is not None and self.syncs == counter.syncs and not counter.is_syncing


@dataclass(slots=True, eq=False)
class LocalCounter:
    """The usage of one counter, as far as this process knows. See the tables above."""

    #: A charge of this counter with its key.
    charge: Charge
    #: The quota of `charge`.
    widest: int = 0
    used: int = 0
    unsent: int = 0
    pending: int = 0
    is_syncing: bool = False
    #: How often it was synced.
    syncs: int = 0
    #: When it must sync again.
    due_at: float = -inf
    #: `used` is exact for quotas up to this one: the engine does not say how far a counter exceeds a quota.
    known_quota: int = 0
    #: When the whole quota is back, if nothing is charged.
    reset_at: float = 0.0
    #: When a unit was charged here, latest.
    spent_at: float = -inf
    #: Charges of the engine since the latest reply, each with the engine's time.
    _beside: list[tuple[int, int]] = field(default_factory=list)
    #: The time of the latest reply, by both clocks.
    _synced_at: float = 0.0
    _synced_us: int = 0
    #: Between which moments the window ends; -inf = it is not known.
    _ends_early: float = -inf
    _ends_late: float = -inf
    #: Until then, nothing expires; -inf = it is not known.
    _passes_at: float = -inf
    #: The engine's latest rejection, and until when it lasts.
    _rejected_until: float = -inf
    _rejected_cost: int = 0
    _rejected_quota: int = 0

    def __post_init__(self) -> None:
        self.widest = self.charge.limit.quota

    def covers(self, quota: int, now: float) -> bool:
        """Return whether a charge with this quota can be decided here. During a sync, the old data will do."""
        return quota <= self.known_quota and (now < self.due_at or self.is_syncing)

    def rejects(self, charge: Charge) -> bool:
        """Return whether too little is left for this charge."""
        return charge[2] > charge[1].quota - self.used

    def is_idle(self, now: float) -> bool:
        """Return whether the engine has all units, and no charge can be decided by this counter any more."""
        return now >= self.due_at and not (self.is_syncing or self.pending or self.unsynced(now))

    def take(self, charge: Charge, now: float, *, rejected: bool) -> CounterState:
        """Decide a charge here, and return the result. rejected: its call is, so that nothing that fits is charged."""
        is_allowed = not self.rejects(charge)
        if is_allowed and not rejected:
            self.spend(charge, now)
        return self.result(charge, now, is_allowed=is_allowed)

    def spend(self, charge: Charge, now: float) -> None:
        """Charge the cost here."""
        if cost := charge[2]:
            self.used += cost
            self.unsent += cost
            self.spent_at = now
            if charge[1].quota > self.widest:
                self._set_limit(charge[1])
            if self.reset_at <= now:
                self.reset_at = now + charge[1].left_at(self.time_at(now)) / 1_000_000

    def still_rejects(self, charge: Charge, now: float) -> bool:
        """Return whether exactly this charge was rejected by the latest reply, which still holds."""
        exactly = (charge.cost, charge.limit.quota) == (self._rejected_cost, self._rejected_quota)
        return exactly and now < self._rejected_until and not self.unsent

    def refund(self, units: int) -> None:
        """Refund units that were charged here and not sent."""
        if units:
            self.used = max(self.used - units, 0)
            self.unsent = max(self.unsent - units, 0)
            self._rejected_until = -inf

    def expect_refund(self) -> None:
        """Record that the engine gets a refund: it is not known any more how long it rejects."""
        self._rejected_until = self._passes_at = -inf

    def unsynced(self, now: float) -> int:
        """Return the units to send to the engine, without those whose window is over on both sides."""
        limit = self.charge.limit
        is_over = now - self.spent_at > limit.traits.windows * limit.window_us / 1_000_000
        if is_over or self.spent_at < self._ends_early <= self._ends_late <= now:
            self.unsent = 0
        return self.unsent

    def _set_limit(self, limit: Limit) -> None:
        """Send the units with this limit."""
        self.charge, self.widest = self.charge._replace(limit=limit), limit.quota

    def carry(self, carried: int) -> Charge:
        """Return a charge that only carries these units, and begin to sync."""
        self.is_syncing = True
        return self.charge._replace(cost=0, carried=carried, gating=False, usage=None, count_refusals=False)

    def reserve(self, cost: int) -> None:
        """Record that a call is under way that may charge this cost."""
        self.pending += cost
        self.used += cost

    def release(self, cost: int) -> None:
        """Record that this call is over."""
        self.pending -= cost
        self.used = max(self.used - cost, 0)

    def add_charged(self, units: int, at_us: int) -> None:
        """Record that the engine has charged these units, in a call that did not sync this counter."""
        if units and at_us >= self._synced_us:
            self.used += units
            self._beside.append((at_us, units))

    def acknowledge(self, carried: int) -> None:
        """Record that a call has carried these units."""
        self.unsent = max(self.unsent - carried, 0)
        self.syncs += 1
        self.is_syncing = False

    def renew(self, charge: Charge, state: CounterState, carried: int, began: float, now: float) -> None:
        """Store the engine's reply on this charge, to a call that began at `began` and carried these units."""
        quota = charge.limit.quota
        if self.widest != quota and (self.unsent <= carried or quota > self.widest):
            self._set_limit(charge.limit)
        used, reset_after, at_us = quota - state.remaining, state.reset / 1_000_000, state.at_us
        self.acknowledge(carried)
        if self._beside:
            self._beside = [(each_us, units) for each_us, units in self._beside if each_us >= at_us]
            used += sum([units for _, units in self._beside])
        self.used = used + self.unsent + self.pending
        self.due_at = began + (charge.sync_interval or 0.0)
        self.known_quota = ANY_QUOTA if state.remaining else quota
        self._synced_at, self._synced_us = now, at_us
        self.reset_at = now + reset_after
        if reset_after and charge.limit.traits.resets_at_end:
            self._ends_early, self._ends_late = began + reset_after, now + reset_after
        self._passes_at = self._ends_late
        if state.wait > 0:
            self._rejected_until = now + state.wait / 1_000_000
            self._rejected_cost, self._rejected_quota = charge.cost, quota
        elif state.remaining >= self._rejected_cost:
            self._rejected_until = -inf

    def time_at(self, moment: float) -> int:
        """Return the engine's time at this moment, in microseconds."""
        return self._synced_us + int((moment - self._synced_at) * 1_000_000)

    def result(self, charge: Charge, now: float, *, is_allowed: bool) -> CounterState:
        """Return the result for a charge that was decided here. If rejections count, a rejection is charged first."""
        quota = charge[1].quota
        if not is_allowed and charge.count_refusals:
            fill = min(charge.cost, max(quota - self.used, 0))
            self.used, self.unsent = self.used + fill, self.unsent + fill
            self.spent_at = now
            if quota > self.widest:
                self._set_limit(charge.limit)
        left, reset = quota - self.used, self.reset_at - now
        return CounterState(
            self.time_at(now),
            left if left > 0 else 0,
            0 if is_allowed else self.wait(charge, now),
            int(reset * 1_000_000) if reset > 0 else 0,
        )

    def deduct(self, verdict: Verdict, now: float) -> None:
        """Subtract the units that the engine does not have yet from its verdict, which has charged nothing."""
        charge = verdict.charge
        verdict.remaining = max(verdict.remaining - self.unsynced(now), 0)
        if verdict.allowed and charge.cost > verdict.remaining:
            wait = self.wait(charge, now)
            verdict.allowed, verdict.soft_exceeded = False, False
            verdict.retry_after = None if wait < 0 else wait / 1_000_000

    def wait(self, charge: Charge, now: float) -> int:
        """Return the microseconds until a rejected cost may be allowed; -1 = never.

        That is the next sync, or later if that is known.
        """
        quota = charge.limit.quota
        if charge.cost > quota:
            return -1
        until = max(self.due_at, self._passes_at)
        if charge.cost >= self._rejected_cost > 0 and quota <= self._rejected_quota:
            until = max(until, self._rejected_until)
        return max(ceil((until - now) * 1_000_000), SOON_US)


def is_local(charge: Charge) -> bool:
    """Return whether a charge is purely local, so that it is never sent to the engine."""
    return charge.sync_interval is not None and charge.sync_interval < 0


def partition_of(charge: Charge) -> str:
    """Return the partition of a charge, which stands for its caller."""
    return charge.key if charge.partition is None else charge.partition
