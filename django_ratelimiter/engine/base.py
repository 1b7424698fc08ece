"""What goes into an engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ..exceptions import EngineUnavailable
from .limits import EXACT, Limit

#: A cost that no limit holds: it is refused for good, and counted.
NEVER: Final = EXACT


class WrongServer(EngineUnavailable):
    """The server runs the scripts, and not as Redis does."""


class Charge(NamedTuple):
    """One key, its limit, and the cost to spend from it.

    cost: units, 0 or more; 0 only looks.
    gating: False makes it a shadow charge, which stops nobody and is spent only if it would itself pass.
    usage: the label to count this charge under, one line that does not begin with `~`; `None` = it is not counted.
    count_refusals: a refusal by this charge spends too, up to the limit's capacity: nobody runs into debt.
    max_delay: seconds that a leaky bucket may have an admitted request held, else it refuses; `None` = any.
    partition: what picks the shard; `None` = the key.
    sync_interval: seconds for which a process may decide by what it has counted itself; negative = for ever; `None` =
    never. The engines do not look at it: they decide whatever they are asked.
    carried: units that were admitted already, somewhere else. They are spent first, up to the limit's capacity and
    whatever becomes of the call; only a peek leaves them.
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
    carried: int = 0


@dataclass(slots=True)
class Verdict:
    """The engine's true answer for one charge, and the receipt for what it spent.

    remaining: the largest cost that would pass now. After a refused call, what it was before, less counted refusals.
    retry_after: seconds until this cost would pass; 0 = now, `None` = never.
    reset_after: seconds until the full quota is back if nothing more is spent.
    delay: seconds to hold an admitted request; 0 but for a leaky bucket.
    at_us: the engine's time, in microseconds since the Unix epoch.
    spent: units that a refund would give back: 0 in a refused call, in a peek, and once refunded.
    spent_at_us: the time that the spending was booked at; later than `at_us` only where the clock ran back.
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
        """Note that what it spent was given back."""
        self.remaining = min(self.remaining + self.spent, self.charge.limit.capacity)
        self.spent = 0


def check_units(charge: Charge) -> None:
    """Raise ValueError where the units of a charge are no whole numbers from 0."""
    if type(charge.cost) is not int or charge.cost < 0:
        raise ValueError(f"cost: must be a whole number from 0, not {charge.cost!r}.")
    if type(charge.carried) is not int or charge.carried < 0:
        raise ValueError(f"carried: must be a whole number from 0, not {charge.carried!r}.")


def leases(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that hold a lease."""
    return [verdict for verdict in verdicts if verdict.spent and verdict.charge.limit.holds_leases]


def receipts_of(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that spent something, each once."""
    if verdicts == ():
        return []
    return list({id(verdict): verdict for verdict in verdicts if verdict.spent}.values())


def mark_refunded_if_denied(receipts: Iterable[Verdict], verdicts: Iterable[Verdict], *, refused: bool = False) -> None:
    """Note that the receipts were given back, if one of the verdicts, or somebody before, has refused the call."""
    if receipts and (refused or any(not verdict.allowed and verdict.charge.gating for verdict in verdicts)):
        mark_refunded(receipts)


def mark_refunded(receipts: Iterable[Verdict]) -> None:
    """Note that they were given back."""
    for receipt in receipts:
        receipt.mark_refunded()


def as_charged(peeked: list[Verdict]) -> list[Verdict]:
    """Return the verdicts of a peek with what would be left after the check; their times are as before it."""
    if all(verdict.allowed or not verdict.charge.gating for verdict in peeked):
        for verdict in peeked:
            if verdict.allowed:
                verdict.spent = verdict.charge.cost
                verdict.remaining = max(verdict.remaining - verdict.spent, 0)
    return peeked


class Version(NamedTuple):
    """The version of a rule set. `epoch` (Unix milliseconds) tells when its count began: the later one wins."""

    number: int
    epoch: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """What versions are compared by."""
        return self.epoch, self.number


def as_version(version: int | Version) -> Version:
    """Let a bare number stand for a version of epoch 0."""
    return version if isinstance(version, Version) else Version(version)


class UsageCount(NamedTuple):
    """What one rule decided for one tier in one minute, in requests.

    allowed, denied: by the rule itself, whatever other rules said. soft_exceeded is a part of allowed.
    shadow_denied: would have been denied, were the rule enforced; a shadow rule denies nobody.
    degraded: those of allowed, denied and shadow_denied that a process decided without the engine.
    """

    minute: int
    label: str
    allowed: int = 0
    denied: int = 0
    shadow_denied: int = 0
    soft_exceeded: int = 0
    degraded: int = 0


class Engine(Protocol):
    """Decides charges atomically: all of a call's gating charges pass and are spent, or none is spent."""

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        """Decide and spend. Raises StaleRules if `version` is not the one in force, EngineUnavailable."""

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now, spending and counting nothing."""

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent, once each."""

    def release(self, verdicts: Iterable[Verdict]) -> None:
        """End the leases that these verdicts hold, once each; verdicts without a lease are left alone."""

    def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys."""

    def publish(self, version: int | Version) -> None:
        """Put a version in force, unless a later one is. Only for a caller that has just read the primary."""

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed and name every batch of counts that waits to be collected."""

    def read_usage(self, batch: str) -> list[UsageCount]:
        """The counts of one batch; empty once it was dropped."""

    def drop_usage(self, batch: str) -> None:
        """Forget a batch that has been collected."""
