"""One call of the engine about callers who come first in an interval, and what is kept of its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..base import Charge, Verdict
from ..templates import CallTemplate, FilledCharges, FilledVerdicts
from ..usage import UsageCarry
from .counter import LocalCounter, LocalCounterPool, partition_of
from .filled import SyncCharges, synced_charges


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


def lengthen_waits(charges: Sequence[Charge], verdicts: Sequence[Verdict], passed: float) -> None:
    """Let those who are refused wait for the end of the interval at least. passed: seconds of it, negative."""
    if type(verdicts) is FilledVerdicts:
        verdicts.lengthen([int(((charge.sync_interval or 0.0) + passed) * 1_000_000) for charge in charges])
        return
    for verdict in verdicts:
        if verdict.retry_after:
            verdict.retry_after = max(verdict.retry_after, (verdict.charge.sync_interval or 0.0) + passed)
