"""What is allowed here without asking: charges that are counted in the process, and fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base import Charge, Verdict, Version
from ..templates import CounterStates, FilledCharges, FilledVerdicts
from .counter import LocalCounter, LocalVerdict
from .filled import SyncCharges, synced_charges, synced_template

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


def admit_filled(charges: FilledCharges, synced: SyncCharges, local: LocalCounters, now: float) -> LocalVerdicts | None:
    """Spend filled charges here, and count their call; under the lock of the local counters.

    `None` if a counter is not known or has not enough left, or the general path is needed: then nothing is spent.
    """
    template = synced_template(charges.template)
    if template is None or not template.is_simple:
        return None
    counters = []
    for counter, (quota, cost, _) in zip(map(local.by_name.get, synced.names), synced.terms, strict=True):
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
    at_us, none = counters[0].time_at(now), [0] * len(counters)
    if template.admitted:
        local.usage.add(at_us, template.admitted)
    return LocalVerdicts(charges, _new(CounterStates, (at_us, remaining, none, resets, none)), counters)


def admit_or_ask(
    charges: FilledCharges, local: LocalCounters, version: int | Version | None, now: float
) -> LocalVerdicts | tuple[()] | None:
    """Spend all charges of a call here; empty if too little is known of its caller, and the engine is to be asked.

    Then see `FirstCalls.is_first`. `None` = it is to be decided in another way.
    """
    if not charges.template.sync_interval:
        return None
    own = charges.template.own
    if charges.partitions[own[0] if own else 0] not in local.by_name.partitions:
        return () if local.first_calls.is_first(charges, now) else None
    synced = synced_charges(charges)
    with local.lock:
        if synced is None or not local.version_state.is_current(version, now):
            return None
        return admit_filled(charges, synced, local, now)


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
