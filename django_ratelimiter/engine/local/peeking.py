"""The verdicts that synced charges would get now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ..base import Charge, Verdict
from ..usage.rejections import CounterRejections
from .counter import is_local
from .store import LocalCounters


class LocalRejections:
    """Adds `peek_at_caller` to `LocalFirstEngine`, if its engine has this method."""

    engine: Any
    counters: LocalCounters

    @property
    def peek_at_caller(self) -> Callable[[Iterable[Charge]], CounterRejections]:
        """The method `peek_at_caller`: verdicts and recent rejections. AttributeError if the engine lacks it."""
        return partial(self._peek_at_caller, self.engine.peek_at_caller)

    def _peek_at_caller(
        self, read: Callable[[list[Charge]], CounterRejections], charges: Iterable[Charge]
    ) -> CounterRejections:
        charges = list(charges)
        found = read([charge for charge in charges if not is_local(charge)])
        if all(charge.sync_interval is None for charge in charges):
            return found
        return found._replace(verdicts=peek(self.counters, charges, found.verdicts))


def peek(counters: LocalCounters, charges: Sequence[Charge], replies: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts for the charges. replies: the engine's verdicts on those that are not purely local."""
    theirs = iter(replies)
    with counters.lock:
        now = counters.now()
        ours = iter(counters.peek_locally([*filter(is_local, charges)], now))
        return [
            next(ours) if is_local(each) else _without_unsent(counters, each, next(theirs), now) for each in charges
        ]


def _without_unsent(counters: LocalCounters, charge: Charge, verdict: Verdict, now: float) -> Verdict:
    """Return the engine's verdict, less the units that it does not have yet."""
    counter = None if charge.sync_interval is None else counters.by_name.get(charge.key + charge.limit.tag)
    if counter is not None:
        verdict.remaining = max(verdict.remaining - counter.unsynced(now), 0)
        if verdict.allowed and charge.cost > verdict.remaining:
            wait = counter.wait(charge, now)
            verdict.allowed, verdict.soft_exceeded = False, False
            verdict.retry_after = None if wait < 0 else wait / 1_000_000
    return verdict
