"""One call of the engine for callers that come first in an interval, and the part of its reply that is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..base import Charge, Verdict
from ..templates import CallTemplate, CounterStates, FilledCarry, FilledCharges, FilledVerdicts
from ..usage import UsageCarry
from .counter import LocalCounter, LocalCounterPool, partition_of
from .filled import SyncCharges, synced_charges, synced_template

_new = tuple.__new__  # what a named tuple calls in the end


def partitions_of(charges: Sequence[Charge]) -> Sequence[str]:
    """Return the partitions of charges."""
    return charges.partitions if type(charges) is FilledCharges else [*map(partition_of, charges)]


def own_partitions_of(charges: Sequence[Charge]) -> list[str]:
    """Return the partitions that distinguish callers."""
    if type(charges) is FilledCharges:
        return [charges.partitions[place] for place in charges.template.own]
    return [partition for partition in partitions_of(charges) if partition]


class FirstReply(NamedTuple):
    """The engine's reply about charges. began, ended: start and end of the call, in monotonic seconds."""

    began: float
    ended: float
    charges: Sequence[Charge]
    verdicts: Sequence[Verdict]
    template: CallTemplate | None

    @property
    def interval(self) -> float:
        """Seconds from the beginning for which it is valid: the longest interval of its charges."""
        if self.template is not None:
            return self.template.sync_interval
        return max([charge.sync_interval or 0.0 for charge in self.charges], default=0.0)

    def counter_of(self, name: str) -> LocalCounter | None:
        """Return a local counter made from the reply; `None` if the reply has no charge of this name."""
        synced = synced_charges(self.charges)
        assert synced is not None
        if name not in synced.names:
            return None
        place = synced.names.index(name)
        counter = LocalCounter(self.charges[place])
        counter.apply_reply(self.verdicts[place], 0, self.began, self.ended, synced.terms[place][2])
        return counter


class FirstCall:
    """A call that asks the engine to decide all of its charges, though some of their counters may be local.

    reserved: local counters with room, by place; the engine's charges are added to them. due: local counters that must
    sync, by place; the call carries their unsent units, and its reply updates them.
    synced: of the charges; `None` = for filled ones, made when needed. terms: see `SyncCharges`.
    began: in monotonic seconds. counts: usage that the call carries. comes_again: all partitions that distinguish its
    caller have a recent reply. changes: of the counters when it began.
    """

    __slots__ = (
        "_carried",
        "_synced",
        "began",
        "changes",
        "charges",
        "comes_again",
        "counts",
        "due",
        "reserved",
        "terms",
    )

    def __init__(
        self,
        charges: Sequence[Charge],
        synced: SyncCharges | None,
        reserved: dict[int, LocalCounter],
        began: float,
        due: dict[int, LocalCounter],
    ) -> None:
        self.charges, self._synced, self.reserved, self.began, self.due = charges, synced, reserved, began, due
        terms = self.terms = synced.terms if synced else synced_template(charges.template).terms  # type: ignore[union-attr, attr-defined]
        self.changes = -1
        self.counts: UsageCarry | None = None
        self.comes_again = False
        self._carried: tuple[int, ...] = ()
        for place, counter in reserved.items():
            counter.reserve(terms[place][1])
        if due:
            carried = [0] * len(charges)
            for place, counter in due.items():
                counter.asked_by, carried[place] = self, counter.unsent
                counter.used += terms[place][1]  # no other thread may use these units meanwhile
            self._carried = tuple(carried)

    @property
    def synced(self) -> SyncCharges:
        """The sync data of the charges; the names of filled ones are made at the first use."""
        if self._synced is None:
            self._synced = synced_charges(self.charges)
        assert self._synced is not None
        return self._synced

    @property
    def is_all_counted(self) -> bool:
        """True if all of its counters are local, so that the reply need not be stored."""
        return bool(self.due) and len(self.reserved) + len(self.due) == len(self.charges)

    def asked(self) -> Iterable[Charge]:
        """Return the charges to send to the engine."""
        if not self._carried:
            return self.charges
        if type(self.charges) is FilledCharges:
            return FilledCarry(self.charges, self._carried)
        pairs = zip(self.charges, self._carried, strict=True)
        return [charge._replace(carried=carried) for charge, carried in pairs]

    def fail(self) -> None:
        """Record that there was no reply. Carried units stay unsent: better sent twice than not at all."""
        for place, counter in self.reserved.items():
            counter.resolve_reservation(self.terms[place][1], 0, 0)
        for place, counter in self.due.items():
            if counter.asked_by is self:
                counter.asked_by, counter.used = None, max(counter.used - self.terms[place][1], 0)

    def finish(self, verdicts: Sequence[Verdict], counters: LocalCounterPool, now: float) -> None:
        """Store the reply. counters: the current local counters."""
        if self.due:
            if type(verdicts) is not FilledVerdicts:
                for verdict, charge in zip(verdicts, self.charges, strict=True):
                    verdict.charge = charge  # the carried units are internal
            self._renew(verdicts, now)
        if self.reserved:
            self._resolve(verdicts)
        if counters.changes != self.changes:
            self._tell_new(verdicts, counters)

    def _resolve(self, verdicts: Sequence[Verdict]) -> None:
        """End the reservations. After that no verdict shows more remaining units than the local counter has."""
        at_us, terms = at_us_of(verdicts), self.terms
        if type(verdicts) is FilledVerdicts:
            left = list(verdicts.states.remaining)
        else:
            left = [verdict.remaining for verdict in verdicts]
        for place, counter in self.reserved.items():
            quota, cost, _ = terms[place]
            counter.resolve_reservation(cost, spent_at(verdicts, place), at_us)
            left[place] = min(left[place], max(quota - counter.used, 0))
        if type(verdicts) is FilledVerdicts:
            _, _, waits, resets, leads = verdicts.states
            verdicts.states = _new(CounterStates, (at_us, left, waits, resets, leads))
            return
        for verdict, remaining in zip(verdicts, left, strict=True):
            verdict.remaining = remaining

    def _tell_new(self, verdicts: Sequence[Verdict], counters: LocalCounterPool) -> None:
        """Add the charges to counters that another thread has created since the call began."""
        for place, name in enumerate(self.synced.names):
            if place not in self.reserved and place not in self.due and name in counters:
                counters[name].resolve_reservation(0, spent_at(verdicts, place), at_us_of(verdicts))

    def _renew(self, verdicts: Sequence[Verdict], now: float) -> None:
        """Update the counters whose units this call has carried."""
        states = verdicts.states if type(verdicts) is FilledVerdicts and not any(verdicts.states.waits) else None
        for place, counter in self.due.items():
            if counter.asked_by is not self:
                continue
            quota, _, interval = self.terms[place]
            if states and states.remaining[place] and quota == counter.widest and not counter.refused_cost:
                used, reset_after = quota - states.remaining[place], states.resets[place] / 1_000_000
                counter.renew(used, reset_after, states.at_us, self._carried[place], self.began, now)
                counter.due_at, counter.at_most = self.began + interval, 1 << 62
            else:
                counter.apply_reply(verdicts[place], self._carried[place], self.began, now, interval)


def spent_at(verdicts: Sequence[Verdict], place: int) -> int:
    """Return the units that the charge at this place has used."""
    if type(verdicts) is not FilledVerdicts:
        return verdicts[place].spent
    cost: int = verdicts.charges.template.templates[place].charge.cost
    return 0 if verdicts.is_denied or verdicts.states.waits[place] else cost


def at_us_of(verdicts: Sequence[Verdict]) -> int:
    """Return the engine's time, in microseconds."""
    return verdicts.states.at_us if type(verdicts) is FilledVerdicts else verdicts[0].at_us


def lengthen_waits(charges: Sequence[Charge], verdicts: Sequence[Verdict], passed: float) -> None:
    """Make rejected callers wait at least until the interval ends. passed: seconds of it, negative."""
    if type(verdicts) is FilledVerdicts:
        verdicts.lengthen([int(((charge.sync_interval or 0.0) + passed) * 1_000_000) for charge in charges])
        return
    for verdict in verdicts:
        if verdict.retry_after:
            verdict.retry_after = max(verdict.retry_after, (verdict.charge.sync_interval or 0.0) + passed)
