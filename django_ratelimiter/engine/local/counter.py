"""What a process may spend of counters without asking: budgets between two calls.

Times are monotonic seconds of this process. Nothing here waits, and nothing is locked: see `engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final

from ..base import Charge, Verdict

#: What is told to wait, in seconds, while another thread is asking the engine: its answer is about to come.
SOON: Final = 0.001


class LocalVerdict(Verdict):
    """A verdict of this process, and the budget that it was given from.

    sent: how often the budget had been carried to the engine by then.
    """

    __slots__ = ("counter", "sent")

    counter: LocalCounter
    sent: int


class LocalCounter:
    """What one counter has left, as far as this process knows.

    charge: of those that spent what is unsent, one with the widest limit, which is of so many units: widest.
    used: units spent, by the engine's latest word and since then here. unsent: those of them that the engine has not
    been told of. due_at: when the engine is to be asked again.
    asked_by: the call that is asking it; `None` = none. at_most: the quota up to which `used` is exact.
    pending: what other threads are asking the engine to spend past this budget; beside: what it has, with its time.
    refused_until, refused_cost, refused_quota: what the engine has refused, and until when it will. passes_at: when the
    window ends, if nothing passes before.
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
        """Units that this charge's limit has left."""
        return charge.limit.quota - self.used

    def covers(self, charge: Charge, now: float) -> bool:
        """Whether this charge can be decided here."""
        return now < self.due_at and charge.limit.quota <= self.at_most

    def is_idle(self, now: float) -> bool:
        """Whether the engine knows all of it, and nobody here can decide by it any more."""
        return now >= self.due_at and self.asked_by is None and not self.pending and not self.unsynced(now)

    def spend(self, charge: Charge, now: float) -> None:
        """Spend the charge's cost here."""
        if not charge.cost:
            return
        self.used += charge.cost
        self.unsent += charge.cost
        self.spent_at = now
        self.widen(charge)
        if self.reset_at <= now:
            self.reset_at = now + charge.limit.window_us / 1_000_000

    def widen(self, charge: Charge) -> None:
        """What is unsent was spent by this charge as well."""
        if charge.limit.quota > self.widest:
            self.charge, self.widest = charge, charge.limit.quota

    def reserve(self, cost: int) -> None:
        """Another thread asks the engine to spend this without telling of the budget."""
        self.pending += cost
        self.used += cost

    def resolve_reservation(self, cost: int, spent: int, at_us: int) -> None:
        """What became of that: it spent so much, at the engine's time."""
        self.pending -= cost
        self.used = max(self.used - cost, 0)
        if spent and at_us >= self.synced_us:
            self.used += spent
            self.beside.append((at_us, spent))

    def decide(self, charge: Charge, now: float, *, denied: bool) -> LocalVerdict:
        """Return the verdict on a charge. It is spent here if it passes, unless its call is denied."""
        if charge.cost <= charge.limit.quota - self.used:
            if denied or not charge.cost:
                return self.verdict(charge, now, allowed=True, spent=0, denied=denied)
            self.spend(charge, now)
            return self.verdict(charge, now, allowed=True, spent=charge.cost, denied=False)
        if charge.count_refusals:
            self.spend_refusal(charge, now)
        return self.verdict(charge, now, allowed=False, spent=0, denied=denied)

    def refund(self, units: int) -> None:
        """Take back what was spent here."""
        self.used = max(self.used - units, 0)
        self.unsent = max(self.unsent - units, 0)
        if units:
            self.refused_until = -inf

    def engine_refunded(self) -> None:
        """The engine is told to take back something, so that nobody knows until when it refuses."""
        self.refused_until = self.passes_at = -inf

    def spend_refusal(self, charge: Charge, now: float) -> None:
        """Spend up to the quota: a refusal that counts."""
        fill = min(charge.cost, max(charge.limit.quota - self.used, 0))
        self.widen(charge)
        self.used, self.unsent = self.used + fill, self.unsent + fill
        self.spent_at = now

    def unsynced(self, now: float) -> int:
        """Units to tell the engine of. Those whose window is over, for it and for us, count no more."""
        limit = self.charge.limit
        over = now - self.spent_at > limit.traits.windows * limit.window_us / 1_000_000
        if over or self.spent_at < self.ends_early <= self.ends_late <= now:
            self.unsent = 0
        return self.unsent

    def acknowledge_synced(self, carried: int) -> bool:
        """The engine was told of so much, and nothing else; whether that was all."""
        self.unsent = max(self.unsent - carried, 0)
        self.sent += 1
        self.asked_by = None
        return not self.unsent

    def apply_reply(self, verdict: Verdict, carried: int, began: float, now: float, interval: float) -> None:
        """Take the engine's word, given to a call that began then, has carried so much, and has returned now.

        interval: seconds from its beginning for which that word is enough.
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
        """Take the engine's word that so much is used, and nothing of it after so many seconds.

        at_us: when it was said, by the engine's clock. The rest: see `apply_reply`.
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
        """Such a charge is refused until then."""
        self.refused_until, self.refused_cost, self.refused_quota = until, charge.cost, charge.limit.quota

    def still_refuses(self, charge: Charge, now: float) -> bool:
        """Whether it is known until when exactly this is refused, and nothing has been spent since."""
        exactly = (charge.cost, charge.limit.quota) == (self.refused_cost, self.refused_quota)
        return exactly and now < self.refused_until and not self.unsent

    def time_at(self, moment: float) -> int:
        """The engine's time at this moment, in microseconds."""
        return self.synced_us + int((moment - self.synced_at) * 1_000_000)

    def wait(self, charge: Charge, now: float) -> float | None:
        """Seconds until a refused cost may pass: when the engine is asked again, or later if that is known."""
        if charge.cost > charge.limit.quota:
            return None
        until = max(self.due_at, self.passes_at)
        if charge.cost >= self.refused_cost > 0 and charge.limit.quota <= self.refused_quota:
            until = max(until, self.refused_until)
        return max(until - now, SOON)

    def verdict(self, charge: Charge, now: float, *, allowed: bool, spent: int, denied: bool) -> LocalVerdict:
        """The verdict of this process, once its cost was spent."""
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
    """What is counted here. partitions: of these counters, each with their number. changes: how often one came or went.

    replies: the engine's latest about a partition. Where a counter goes, what was said before of it goes as well: it
    knows nothing of what was spent here since.
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
        """Forget counters that nobody uses."""
        for name in [name for name, counter in self.items() if counter.is_idle(now)]:
            del self[name]


def partition_of(charge: Charge) -> str:
    """Return the partition of a charge; that of one that was made without is in its key."""
    if charge.partition is None:
        return charge.key.partition(":")[2].partition(":")[0] or charge.key
    return charge.partition


def is_unsynced(receipt: Verdict) -> bool:
    """Whether what it spent is known here alone."""
    if not isinstance(receipt, LocalVerdict):
        return False
    return receipt.sent == receipt.counter.sent and receipt.counter.asked_by is None


def is_twice(charges: Sequence[Charge]) -> bool:
    """Whether two of the charges are for one counter."""
    return len({charge.key + charge.limit.tag for charge in charges}) != len(charges)


def is_local(charge: Charge) -> bool:
    """Whether it is purely local: the engine is never asked."""
    return charge.sync_interval is not None and charge.sync_interval < 0
