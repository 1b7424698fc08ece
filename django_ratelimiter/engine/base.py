"""The arguments and results of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ..exceptions import EngineUnavailable
from .limits import EXACT, Limit

#: A cost that no limit allows: it is rejected for ever, and counted.
NEVER: Final = EXACT


class WrongServer(EngineUnavailable):
    """The server runs the scripts, but not with Redis's results."""


class Alias(str):
    """The partition of a caller, which is all that keys contain, with a tail: more about the caller, for lists.

    tail: "" = there is nothing more. To compare aliases is to compare partitions.
    """

    __slots__ = ("tail",)

    tail: str

    @classmethod
    def of(cls, partition: str, tail: str) -> Alias:
        """Return the alias of these."""
        alias = cls(partition)
        alias.tail = tail
        return alias

    @classmethod
    def of_note(cls, text: str) -> Alias:
        """Return the alias that `noted` has written."""
        partition, _, tail = text.partition("\t")
        return cls.of(partition, tail)


def tail_of(partition: str | None) -> str:
    """Return the tail of a partition, if it is an alias; else ""."""
    return getattr(partition, "tail", "")


def noted(partition: str) -> str:
    """Return how a partition is written in lists of callers: with its tail after a tab."""
    tail = tail_of(partition)
    return f"{partition}\t{tail}" if tail else partition


class Charge(NamedTuple):
    """One key, its limit, and the cost to charge.

    cost: units, 0 or more; 0 = only look.
    gating: False = a shadow charge, which rejects no request and is charged only if it would be allowed itself.
    usage: the label to count this charge under, one line that does not begin with `~`; `None` = it is not counted.
    count_refusals: a rejection by this charge is charged, too, up to the limit's capacity.
    max_delay: the longest delay in a leaky bucket, in seconds; a longer one is rejected. `None` = any.
    partition: the value that selects the shard; `None` = the key.
    sync_interval: seconds for which a process keeps units that it has fetched in advance; negative = it decides alone;
    `None` = the engine decides each time. The engines ignore it: they decide every charge that they get.
    usual_cost: what an allowed request of this label is known to cost. Usage counts other costs, and refunds, apart;
    `None` = it counts no units.
    exact: usage counts each caller, too: its partition, which is one line of text, with the tail.
    """

    key: str
    limit: Limit
    cost: int = 1
    gating: bool = True
    usage: str | None = None
    count_refusals: bool = False
    max_delay: float | None = None
    partition: str | None = None
    sync_interval: float | None = None
    usual_cost: int | None = None
    exact: bool = False

    @property
    def may_be_fetched(self) -> bool:
        """True if a process may charge units of it in advance."""
        return not self.count_refusals and self.limit.traits.fetches

    @property
    def is_local(self) -> bool:
        """True if each process decides it alone, so that it is never sent to the engine."""
        return self.sync_interval is not None and self.sync_interval < 0


@dataclass(slots=True)
class Verdict:
    """The engine's result for one charge, and the receipt for a refund.

    remaining: the largest cost that would be allowed now. After a rejected call, as before it, less counted rejections.
    retry_after: seconds until this cost would be allowed; 0 = now, `None` = never.
    reset_after: seconds until the full quota is back, if no more is used.
    delay: seconds to delay an allowed request; 0 except for a leaky bucket.
    at_us: the engine's time, in microseconds since the Unix epoch.
    spent: units that a refund would return: 0 in a rejected call, in a peek, and after a refund.
    spent_at_us: the time at which the units were charged; later than `at_us` only if the clock ran backwards.
    """

    allowed: bool
    remaining: int
    retry_after: float | None
    reset_after: float
    delay: float
    soft_exceeded: bool
    at_us: int
    charge: Charge
    spent: int = 0
    spent_at_us: int = 0

    def mark_refunded(self) -> None:
        """Record that its units were refunded."""
        self.remaining = min(self.remaining + self.spent, self.charge.limit.capacity)
        self.spent = 0


def check_units(charge: Charge) -> None:
    """Raise ValueError if the units of a charge are not whole numbers from 0."""
    if type(charge.cost) is not int or charge.cost < 0:
        raise ValueError(f"cost: must be a whole number from 0, not {charge.cost!r}.")


def leases(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that hold a lease."""
    return [verdict for verdict in verdicts if verdict.spent and verdict.charge.limit.holds_leases]


def receipts_of(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that used quota, each once."""
    if verdicts == ():
        return []
    return list({id(verdict): verdict for verdict in verdicts if verdict.spent}.values())


def mark_refunded(receipts: Iterable[Verdict]) -> None:
    """Mark the receipts as refunded."""
    for receipt in receipts:
        receipt.mark_refunded()


class Version(NamedTuple):
    """The version of a rule set. `epoch`: when its numbering began, in Unix milliseconds; the later epoch wins."""

    number: int
    epoch: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of versions."""
        return self.epoch, self.number


def as_version(version: int | Version) -> Version:
    """Return the version; an integer becomes a version of epoch 0."""
    return version if isinstance(version, Version) else Version(version)


class Counted(NamedTuple):
    """A charge of an earlier call for the same request, as it was counted: see `usage`.

    minute: since the Unix epoch; `None` = not known. line: of its label. letter: of its outcome. units: that it cost
    beyond the usual cost, which are counted apart.
    """

    minute: int | None
    line: str
    letter: str
    units: int = 0


class UsageCount(NamedTuple):
    """The requests that one rule decided for one tier in one minute; of exact charges, those of one caller.

    label: of exact charges followed by the caller, see `usage`. allowed: they went through. soft_exceeded: a part of
    allowed. rejected: by this rule. rejected_by_other: this rule allows them, but another one rejected them.
    shadow_rejected: a rule in shadow would have rejected them; it rejects none. degraded: the part of all that was
    decided without the engine. exempt: the part of allowed whose callers are exempt. extra_units: what the allowed ones
    cost beyond 1 unit each, less what was refunded. Counts that correct earlier ones may be below 0.
    """

    minute: int
    label: str
    allowed: int = 0
    rejected: int = 0
    shadow_rejected: int = 0
    soft_exceeded: int = 0
    degraded: int = 0
    rejected_by_other: int = 0
    exempt: int = 0
    extra_units: int = 0

    @property
    def units(self) -> int:
        """Return what the allowed requests cost."""
        return self.allowed + self.extra_units

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return self.allowed + self.rejected + self.rejected_by_other + self.shadow_rejected


class Engine(Protocol):
    """Decides charges atomically: either all gating charges of a call are allowed and charged, or none is charged."""

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """Decide and charge. Raises StaleRules if `version` is older than the current one, and EngineUnavailable."""

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now. Nothing is charged or counted."""

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each."""

    def release(self, verdicts: Iterable[Verdict]) -> None:
        """Release the leases of these verdicts, once each. Verdicts without a lease are ignored."""

    def reset(self, charges: Iterable[Charge]) -> None:
        """Delete the counters of these charges."""

    def publish(self, version: int | Version) -> None:
        """Make a version current, unless a later one is. Call it only after reading the primary database."""

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed, and return the names of all batches that wait to be collected."""

    def read_usage(self, batch: str) -> list[UsageCount]:
        """Return the counts of one batch; empty if it was dropped."""

    def drop_usage(self, batch: str) -> None:
        """Delete a batch that has been collected."""
