"""What synced charges would be told now. Everything here is done under the lock of `LocalCounters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base import Charge, Verdict
from .counter import LocalCounter
from .sync import is_local

if TYPE_CHECKING:
    from .counters import LocalCounters


def peek(counters: LocalCounters, charges: Sequence[Charge], replies: Sequence[Verdict], now: float) -> list[Verdict]:
    """What the charges would be told. replies: the engine's verdicts on those that are not purely local."""
    answers = iter(replies)
    return [
        _peek_local(counters, charge, now) if is_local(charge) else _less_unsynced(counters, charge, next(answers), now)
        for charge in charges
    ]


def _peek_local(counters: LocalCounters, charge: Charge, now: float) -> Verdict:
    counter = counters.by_name.get(charge.key + charge.limit.tag) or LocalCounter(charge)
    counters.refresh(counter, charge, now)
    return counter.verdict(charge, now, allowed=charge.cost <= counter.left(charge), spent=0, denied=False)


def _less_unsynced(counters: LocalCounters, charge: Charge, verdict: Verdict, now: float) -> Verdict:
    counter = None if charge.sync_interval is None else counters.by_name.get(charge.key + charge.limit.tag)
    if counter is not None:
        verdict.remaining = max(verdict.remaining - counter.unsynced(now), 0)
        if verdict.allowed and charge.cost > verdict.remaining:
            verdict.allowed, verdict.soft_exceeded, verdict.retry_after = False, False, counter.wait(charge, now)
    return verdict
