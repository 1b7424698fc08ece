"""Local counters: what a process may charge between two syncs with the engine.

Times are monotonic seconds of this process. Nothing here waits or is locked: see `engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from ..base import Charge, Verdict

#: Seconds to wait for a rejected caller while another thread is calling the engine: its reply will come soon.
SOON: Final = 0.001


class LocalVerdict(Verdict):
    """A verdict of this process, and its local counter.

    sent: how often the counter had been synced by then.
    """

    __slots__ = ("counter", "sent")

    counter: LocalCounter
    sent: int


class LocalCounter:
    """The usage of one counter, as far as this process knows.

    charge: of the charges with unsent units, the one with the widest limit; its quota is `widest`. used: units used, by
    the engine's latest reply and locally since then. unsent: units of it that are not yet sent to the engine. due_at:
    when to sync again. asked_by: the call that is syncing it; `None` = none. at_most: the quota up to which `used` is
    exact. pending: units that other threads ask the engine to charge, past this counter; beside: units that it has
    charged for them, with the time. refused_until, refused_cost, refused_quota: the engine's latest rejection, and how
    long it lasts. passes_at: when the window ends, if nothing expires before.
    """

    __slots__ = (
        "asked_by",
        "at_most",
        "beside",
        "charge",
        "due_at",
        "ends_early",
        "ends_late",
        "passes_at",
        "pending",
        "refused_cost",
        "refused_quota",
        "refused_until",
        "reset_at",
        "sent",
        "spent_at",
        "synced_at",
        "synced_us",
        "unsent",
        "used",
        "widest",
    )

    def __init__(self, charge: Charge) -> None:
        self.charge, self.widest = charge, charge.limit.quota
        self.used = self.unsent = self.sent = self.synced_us = self.at_most = self.pending = 0
        self.refused_cost = self.refused_quota = 0
        self.due_at = self.spent_at = self.refused_until = self.passes_at = self.ends_early = self.ends_late = -inf
        self.synced_at = self.reset_at = 0.0
        self.asked_by: object = None
        self.beside: list[tuple[int, int]] = []

    def left(self, charge: Charge) -> int:
        """Return the units that this charge's limit has left."""
        return charge.limit.quota - self.used

    def covers(self, charge: Charge, now: float) -> bool:
        """Return whether this charge can be decided locally."""
        return now < self.due_at and charge.limit.quota <= self.at_most

    def is_idle(self, now: float) -> bool:
        """Return whether the engine has all units, and no charge can be decided by this counter any more."""
        return now >= self.due_at and self.asked_by is None and not self.pending and not self.unsynced(now)

    def spend(self, charge: Charge, now: float) -> None:
        """Charge the cost locally."""
        if not charge.cost:
            return
        self.used += charge.cost
        self.unsent += charge.cost
        self.spent_at = now
        self.widen(charge)
        if self.reset_at <= now:
            self.reset_at = now + charge.limit.window_us / 1_000_000

    def widen(self, charge: Charge) -> None:
        """Record that a part of the unsent units comes from this charge."""
        if charge.limit.quota > self.widest:
            self.charge, self.widest = charge, charge.limit.quota

    def reserve(self, cost: int) -> None:
        """Reserve this cost: another thread asks the engine to charge it, without syncing this counter."""
        self.pending += cost
        self.used += cost

    def resolve_reservation(self, cost: int, spent: int, at_us: int) -> None:
        """End a reservation: the engine has charged `spent` units, at its time `at_us`."""
        self.pending -= cost
        self.used = max(self.used - cost, 0)
        if spent and at_us >= self.synced_us:
            self.used += spent
            self.beside.append((at_us, spent))

    def decide(self, charge: Charge, now: float, *, denied: bool) -> LocalVerdict:
        """Return the verdict on a charge. It is charged if it is allowed, unless its call is denied."""
        if charge.cost <= charge.limit.quota - self.used:
            if denied or not charge.cost:
                return self.verdict(charge, now, allowed=True, spent=0, denied=denied)
            self.spend(charge, now)
            return self.verdict(charge, now, allowed=True, spent=charge.cost, denied=False)
        if charge.count_refusals:
            self.spend_refusal(charge, now)
        return self.verdict(charge, now, allowed=False, spent=0, denied=denied)

    def refund(self, units: int) -> None:
        """Refund what was charged locally."""
        self.used = max(self.used - units, 0)
        self.unsent = max(self.unsent - units, 0)
        if units:
            self.refused_until = -inf

    def engine_refunded(self) -> None:
        """Record that the engine gets a refund. It is then not known how long it rejects."""
        self.refused_until = self.passes_at = -inf

    def spend_refusal(self, charge: Charge, now: float) -> None:
        """Charge up to the quota: for a rejection that counts."""
        fill = min(charge.cost, max(charge.limit.quota - self.used, 0))
        self.widen(charge)
        self.used, self.unsent = self.used + fill, self.unsent + fill
        self.spent_at = now

    def unsynced(self, now: float) -> int:
        """Return the units to send to the engine, without those whose window is over on both sides."""
        limit = self.charge.limit
        over = now - self.spent_at > limit.traits.windows * limit.window_us / 1_000_000
        if over or self.spent_at < self.ends_early <= self.ends_late <= now:
            self.unsent = 0
        return self.unsent

    def acknowledge_synced(self, carried: int) -> bool:
        """Record that `carried` units were sent, in a call for nothing else. Returns whether these were all."""
        self.unsent = max(self.unsent - carried, 0)
        self.sent += 1
        self.asked_by = None
        return not self.unsent

    def apply_reply(self, verdict: Verdict, carried: int, began: float, now: float, interval: float) -> None:
        """Store the engine's reply to a call that began at `began`, carried `carried` units, and returned at `now`.

        interval: seconds from the beginning for which the reply is valid.
        """
        charge = verdict.charge
        quota = charge.limit.quota
        if self.unsent <= carried or quota > self.widest:
            self.charge, self.widest = charge, quota
        self.renew(quota - verdict.remaining, verdict.reset_after, verdict.at_us, carried, began, now)
        self.due_at = began + interval
        self.at_most = quota if not verdict.remaining else 1 << 62
        if not verdict.allowed and verdict.retry_after is not None:
            self.refuse(charge, now + verdict.retry_after)
        elif verdict.remaining >= self.refused_cost:
            self.refused_until = -inf

    def renew(self, used: int, reset_after: float, at_us: int, carried: int, began: float, now: float) -> None:
        """Store the engine's reply: `used` units, and none of them after `reset_after` seconds.

        at_us: the engine's time of the reply. Other arguments: see `apply_reply`.
        """
        unsent = self.unsent = self.unsent - carried if self.unsent > carried else 0
        self.sent += 1
        if self.beside:
            self.beside = [(each_us, spent) for each_us, spent in self.beside if each_us >= at_us]
            unsent += sum([spent for _, spent in self.beside])
        self.used = used + unsent + self.pending
        self.synced_at, self.synced_us, self.asked_by = now, at_us, None
        self.reset_at = now + reset_after
        if reset_after and self.charge.limit.traits.resets_at_end:
            self.ends_early, self.ends_late = began + reset_after, now + reset_after
        self.passes_at = self.ends_late

    def refuse(self, charge: Charge, until: float) -> None:
        """Record that the engine rejects such a charge until then."""
        self.refused_until, self.refused_cost, self.refused_quota = until, charge.cost, charge.limit.quota

    def still_refuses(self, charge: Charge, now: float) -> bool:
        """Return whether the engine's rejection of exactly this charge still holds, and nothing was charged since."""
        exactly = (charge.cost, charge.limit.quota) == (self.refused_cost, self.refused_quota)
        return exactly and now < self.refused_until and not self.unsent

    def time_at(self, moment: float) -> int:
        """Return the engine's time at this moment, in microseconds."""
        return self.synced_us + int((moment - self.synced_at) * 1_000_000)

    def wait(self, charge: Charge, now: float) -> float | None:
        """Return the seconds until a rejected cost may be allowed: until the next sync, or longer if that is known."""
        if charge.cost > charge.limit.quota:
            return None
        until = max(self.due_at, self.passes_at)
        if charge.cost >= self.refused_cost > 0 and charge.limit.quota <= self.refused_quota:
            until = max(until, self.refused_until)
        return max(until - now, SOON)

    def verdict(self, charge: Charge, now: float, *, allowed: bool, spent: int, denied: bool) -> LocalVerdict:
        """Return the local verdict, after the charge."""
        limit = charge.limit
        left = limit.quota - self.used
        at_us = self.time_at(now)
        verdict = LocalVerdict(
            allowed,
            left if left > 0 else 0,
            0.0 if allowed else self.wait(charge, now),
            self.reset_at - now if self.reset_at > now else 0.0,
            0.0,
            allowed and not denied and left < limit.terms.soft_floor,
            at_us,
            charge,
            spent,
            at_us,
        )
        verdict.counter = self
        verdict.sent = self.sent
        return verdict


class LocalCounterPool(dict[str, LocalCounter]):
    """The local counters. partitions: of the counters, with their number. changes: how often one was added or removed.

    replies: the engine's latest reply about a partition. When a counter is removed, the earlier reply is removed as
    well: it lacks what was charged locally since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.replies: dict[str, Any] = {}
        self.partitions: dict[str, int] = {}

    def __setitem__(self, name: str, counter: LocalCounter) -> None:
        if name not in self:
            partition = partition_of(counter.charge)
            self.partitions[partition] = self.partitions.get(partition, 0) + 1
            self.changes += 1
        super().__setitem__(name, counter)

    def __delitem__(self, name: str) -> None:
        partition = partition_of(self[name].charge)
        super().__delitem__(name)
        self.replies.pop(partition, None)
        self.changes += 1
        self.partitions[partition] = self.partitions.get(partition, 0) - 1
        if self.partitions[partition] <= 0:
            del self.partitions[partition]

    def forget_idle(self, now: float) -> None:
        """Drop counters that are not used."""
        for name in [name for name, counter in self.items() if counter.is_idle(now)]:
            del self[name]


def partition_of(charge: Charge) -> str:
    """Return the partition of a charge; if it has none, it is in the key."""
    if charge.partition is None:
        return charge.key.partition(":")[2].partition(":")[0] or charge.key
    return charge.partition


def is_unsynced(receipt: Verdict) -> bool:
    """Return whether the charge of this receipt is not sent to the engine yet."""
    if not isinstance(receipt, LocalVerdict):
        return False
    return receipt.sent == receipt.counter.sent and receipt.counter.asked_by is None


def is_twice(charges: Sequence[Charge]) -> bool:
    """Return whether two of the charges use the same counter."""
    return len({charge.key + charge.limit.tag for charge in charges}) != len(charges)


def is_local(charge: Charge) -> bool:
    """Return whether a charge is purely local, so that it is never sent to the engine."""
    return charge.sync_interval is not None and charge.sync_interval < 0
