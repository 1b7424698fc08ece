"""Decisions without a call of the engine: from local counters with room, and from remembered denials."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Charge, Verdict, Version
from ..templates import CounterStates, FilledCharges, FilledVerdicts
from ..usage import COUNTER, SHADOW
from .counter import LocalCounter, LocalVerdict, is_twice
from .counters import LocalCounters
from .denials import CachedDenial
from .filled import SyncCharges, synced_charges, synced_template
from .first_call import FirstCall

_new = tuple.__new__  # what a named tuple calls in the end


class LocalVerdicts(FilledVerdicts):
    """The local verdicts on filled charges that are all allowed. counters: that were charged."""

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
    """Charge filled charges locally, and count their call. Call it under the lock of the local counters.

    `None` = a counter is missing or has too little left, or the general path is needed. Then nothing is charged.
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
    if template.field:
        local.usage.add(at_us, template.field)
    return LocalVerdicts(charges, _new(CounterStates, (at_us, remaining, none, resets, none)), counters)


def admit_or_ask(
    charges: FilledCharges, local: LocalCounters, version: int | Version | None, now: float
) -> LocalVerdicts | tuple[()] | None:
    """Charge all charges of a call locally; empty if too little is known of the caller, so that the engine must decide.

    See `FirstCalls.is_first`. `None` = take the general path.
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
    """Charge a single charge locally; `None` if its counter is missing or has too little left: nothing is charged."""
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


def decide(
    counters: LocalCounters, charges: Sequence[Charge], version: int | Version | None, receipts: Sequence[Verdict]
) -> Sequence[Verdict] | FirstCall | None:
    """Return the verdicts if all of them can be decided locally, or a call of the engine to make; see `finish_first`.

    `None` = the general path must call the engine.
    """
    now = counters.now()
    current = counters.version_state.is_current(version, now)
    if current and len(charges) == 1 and type(charges) is not FilledCharges:
        charge = charges[0]
        if charge.sync_interval is not None:
            verdict = _admit_one(counters, charge, now)
        else:
            verdict = None if receipts else _deny_one(counters, charge, version, now)
        if verdict is not None:
            return [verdict]
    synced = synced_charges(charges)
    with counters.lock:
        if current:
            verdicts = synced and _admit_filled(counters, charges, synced, now)
            verdicts = verdicts or _decide_or_learn(counters, charges, synced, version, receipts, now)
            if verdicts is not None:
                return verdicts
        if receipts or synced is None:
            return None
        call = counters.first_calls.start(charges, synced, now)
        if call is not None and counters.usage.is_due():
            call.counts = counters.usage.lease()
        return call


def _decide_or_learn(
    counters: LocalCounters,
    charges: Sequence[Charge],
    synced: SyncCharges | None,
    version: int | Version | None,
    receipts: Sequence[Verdict],
    now: float,
) -> Sequence[Verdict] | None:
    """Decide what the fast paths did not, perhaps with new counters, made from earlier replies of the engine."""
    if synced is not None:
        changes = counters.by_name.changes
        if not counters.first_calls.count(charges, synced, now) or counters.first_calls.is_due(synced.names, now):
            return None
        if counters.by_name.changes != changes and (verdicts := _admit_filled(counters, charges, synced, now)):
            return verdicts
    return _decide_known(counters, charges, version, receipts, now)


def _admit_filled(
    counters: LocalCounters, charges: Sequence[Charge], synced: SyncCharges, now: float
) -> Sequence[Verdict] | None:
    """Fast path: allow charges from a template that are all counted locally; `None` = take the general path."""
    return admit_filled(charges, synced, counters, now) if type(charges) is FilledCharges else None


def _decide_known(
    counters: LocalCounters,
    charges: Sequence[Charge],
    version: int | Version | None,
    receipts: Sequence[Verdict],
    now: float,
) -> list[Verdict] | None:
    known: list[LocalCounter | CachedDenial] = []
    denied = remembered = False
    if not all(_is_known(counters, charge, now) for charge in charges):
        return None
    for charge in charges:
        found = _source_of(counters, charge, version, now)
        if found is None:
            return None
        known.append(found)
        if type(found) is CachedDenial:
            remembered = True
            denied = denied or found.refuses
        elif charge.gating and charge.cost > charge.limit.quota - found.used:  # type: ignore[union-attr]
            denied = True
    if (remembered and not denied) or (denied and receipts) or (len(known) > 1 and is_twice(charges)):
        return None
    verdicts = [
        each.replay(charge, now) if type(each) is CachedDenial else each.decide(charge, now, denied=denied)  # type: ignore[union-attr]
        for charge, each in zip(charges, known, strict=True)
    ]
    counters.usage.count(verdicts)
    return verdicts if known else None


def _deny_one(counters: LocalCounters, charge: Charge, version: int | Version | None, now: float) -> Verdict | None:
    """Fast path: deny a single charge that was denied just before; `None` = take the general path."""
    with counters.lock:
        refusal = counters.denials.find(charge, version, now)
        if refusal is None or not refusal.refuses or type(charge.cost) is not int:
            return None
        verdict = refusal.replay(charge, now)
        if charge.usage is not None:
            counters.usage.add(verdict.at_us, f"{charge.usage}\nd{COUNTER}{charge.key}{charge.limit.tag}")
        return verdict


def _admit_one(counters: LocalCounters, charge: Charge, now: float) -> Verdict | None:
    """Fast path: allow a single charge that is counted locally and fits; `None` = take the general path."""
    with counters.lock:
        verdict = admit_one(charge, counters.by_name, now)
        if verdict is not None and charge.usage is not None:
            label = charge.usage if charge.gating else SHADOW + charge.usage
            counters.usage.add(verdict.at_us, label + ("\ns" if verdict.soft_exceeded else "\na"))
        return verdict


def _is_known(counters: LocalCounters, charge: Charge, now: float) -> bool:
    """Return whether something may be known locally that decides this charge."""
    if charge.sync_interval is None:
        return bool(counters.denials)
    return charge.key + charge.limit.tag in counters.by_name


def _source_of(
    counters: LocalCounters, charge: Charge, version: int | Version | None, now: float
) -> LocalCounter | CachedDenial | None:
    """Return the local counter or denial that decides this charge."""
    cost, limit = charge.cost, charge.limit
    if type(cost) is not int or cost < 0 or charge.carried:
        return None
    if charge.sync_interval is None:
        return counters.denials.find(charge, version, now)
    name = charge.key + limit.tag
    counter = counters.by_name.get(name)
    if counter is None or limit.quota > counter.at_most:
        return None
    fits = cost <= limit.quota - counter.used
    if now < counter.due_at:
        if fits or charge.sync_interval > 0 or counter.still_refuses(charge, now):
            return counter
    elif counter.asked_by is not None:  # another thread is syncing it; until then the old data will do
        return counter
    return None
