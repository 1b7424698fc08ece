"""What is allowed here without asking: charges that are counted in the process, and fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base import Charge, Verdict, Version
from ..templates import CounterStates, FilledCharges, FilledVerdicts
from .counter import LocalCounter, LocalVerdict
from .filled import SyncCharges, synced_template

if TYPE_CHECKING:
    from .counters import LocalCounters

_new = tuple.__new__  # what a named tuple calls in the end


class LocalVerdicts(FilledVerdicts):
    """The answer of this process to filled charges that pass. counters: they were spent from."""

    __slots__ = ("_sent", "counters")

    is_local = True

    def __init__(self, charges: FilledCharges, states: CounterStates, counters: Sequence[LocalCounter]) -> None:
        self.charges, self.states, self.counters = charges, states, counters
        self.binding, self.is_denied = None, False
        self._verdicts, self.is_made = None, False
        self._sent = [counter.sent for counter in counters]

    def _make(self) -> list[Verdict]:
        made: list[Verdict] = []
        at_us, remaining, _, resets, _ = self.states
        for charge, left, reset, counter, sent in zip(
            self.charges, remaining, resets, self.counters, self._sent, strict=True
        ):
            verdict = LocalVerdict(True, left, 0.0, reset / 1_000_000, 0.0, False, at_us, charge, charge.cost, at_us)
            verdict.counter, verdict.sent = counter, sent
            made.append(verdict)
        self._verdicts, self.is_made = made, True
        return made


def admit_filled(
    charges: FilledCharges, synced: SyncCharges, by_name: dict[str, LocalCounter], now: float
) -> LocalVerdicts | None:
    """Spend filled charges here; `None` if a counter is not known or has not enough left: then nothing is spent."""
    counters = []
    for counter, (quota, cost, _) in zip(map(by_name.get, synced.names), synced.terms, strict=True):
        if counter is None or now >= counter.due_at or counter.reset_at <= now:
            return None
        if quota > counter.at_most or cost > quota - counter.used or quota > counter.widest:
            return None
        counters.append(counter)
    remaining, resets = [], []
    for counter, (quota, cost, _) in zip(counters, synced.terms, strict=True):
        used = counter.used = counter.used + cost
        counter.unsent += cost
        counter.spent_at = now
        remaining.append(quota - used)
        resets.append(int((counter.reset_at - now) * 1_000_000))
    none = [0] * len(counters)
    return LocalVerdicts(
        charges, _new(CounterStates, (counters[0].time_at(now), remaining, none, resets, none)), counters
    )


def admit_or_ask(
    charges: FilledCharges, counters: LocalCounters, version: int | Version | None, now: float
) -> LocalVerdicts | tuple[()] | None:
    """Spend all charges of a call here; empty if too little is known of its caller, and the engine is to be asked.

    Then see `FirstCalls.is_first`. `None` = it is to be decided in another way.
    """
    if not charges.template.sync_interval:
        return None
    own = charges.template.own
    if charges.partitions[own[0] if own else 0] not in counters.by_name.partitions:
        return () if counters.first_calls.is_first(charges, now) else None
    template = synced_template(charges.template)
    if template is None or not template.is_simple:
        return None
    with counters.lock:
        if not counters.version_state.is_current(version, now):
            return None
        synced = SyncCharges(template.names(charges.partitions), template.terms)
        verdicts = admit_filled(charges, synced, counters.by_name, now)
        if verdicts is not None and template.admitted:
            counters.usage.add(verdicts.states.at_us, template.admitted)
    return verdicts


def admit_one(charge: Charge, by_name: dict[str, LocalCounter], now: float) -> LocalVerdict | None:
    """Spend a single charge here; `None` if its counter is not known or has not enough left: then nothing is spent."""
    key, limit, cost, _, _, _, _, _, interval, carried = charge
    if interval is None or type(cost) is not int or cost <= 0 or carried:
        return None
    counter = by_name.get(key + limit.tag)
    if counter is None or now >= counter.due_at or limit.quota > counter.at_most:
        return None
    left = limit.quota - counter.used - cost
    if left < 0 or counter.reset_at <= now:
        return None
    counter.used += cost
    counter.unsent += cost
    counter.spent_at = now
    if limit.quota > counter.widest:
        counter.widen(charge)
    at_us = counter.time_at(now)
    soft = limit.soft_quota is not None and left < limit.terms.soft_floor
    verdict = LocalVerdict(True, left, 0.0, counter.reset_at - now, 0.0, soft, at_us, charge, cost, at_us)
    verdict.counter, verdict.sent = counter, counter.sent
    return verdict
