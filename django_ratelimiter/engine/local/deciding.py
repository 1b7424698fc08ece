"""Decisions without a call of the engine: by local counters, and by remembered rejections."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Verdict, Version
from ..templates import CounterStates
from .call import CallShape, LocalCall, LocalVerdicts, Source, answer
from .denials import CachedDenial
from .store import LocalCounters

_new = tuple.__new__  # what a named tuple calls in the end


def decide(
    counters: LocalCounters, call: LocalCall, version: int | Version | None, receipts: Sequence[Verdict], now: float
) -> Sequence[Verdict] | None:
    """Return the verdicts if each charge can be decided here. Call it under the lock.

    `None` = the engine must be asked. Then nothing is charged.
    """
    terms, sources = call.terms, list[Source]()
    if not terms or not counters.version_state.is_current(version, now):
        return None
    if call.shape is not None and call.shape.usual and (verdicts := _allow(counters, call, call.shape, now)):
        return verdicts
    denied = False
    for name, charge in zip(call.names, terms, strict=True):
        source = counters.source(name, charge, version, now)
        if source is None:
            return None
        sources.append(source)
        if charge[3] and source.rejects(charge):
            denied = True
    if receipts if denied else CachedDenial in map(type, sources):
        return None
    states = [source.take(charge, now, denied=denied) for source, charge in zip(sources, terms, strict=True)]  # type: ignore[union-attr]
    if field := call.usage_field(range(len(states)), states, denied=denied):
        counters.usage.add(states[0].at_us, field)
    return answer(call, states, sources)


def _allow(counters: LocalCounters, call: LocalCall, shape: CallShape, now: float) -> LocalVerdicts | None:
    """Allow the usual call: its local counters have room, and none is due. `None` = it must be decided in full."""
    by_name, taken = counters.local if shape.is_local else counters.by_name, []
    for counter, (quota, cost) in zip(map(by_name.get, call.names), shape.usual, strict=True):
        if counter is None or now >= counter.due_at or now >= counter.reset_at:
            return None
        if quota > counter.known_quota or quota > counter.widest or cost > quota - counter.used:
            return None
        taken.append(counter)
    remaining, resets = [], []
    for counter, (quota, cost) in zip(taken, shape.usual, strict=True):
        used = counter.used = counter.used + cost
        counter.unsent += cost
        counter.spent_at = now
        remaining.append(quota - used)
        resets.append(int((counter.reset_at - now) * 1_000_000))
    at_us, zeros = taken[0].time_at(now), [0] * len(taken)
    if shape.field:
        counters.usage.add(at_us, shape.field)
    return LocalVerdicts(call.charges, _new(CounterStates, (at_us, remaining, zeros, resets, zeros)), taken)  # type: ignore[arg-type]
