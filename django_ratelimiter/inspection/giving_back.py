"""Refund units of a counter, and end leases: by refunds, with receipts made here.

For a window that is counted, and a bucket, any receipt with the current time works. Algorithms that store when units
were charged only refund units of the time in the receipt: `charge_times` of the engine returns these times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ..backend import get_engine
from ..engine.base import Charge, Verdict
from ..exceptions import EngineUnavailable
from .counters import Counter, moment_of

#: Maximum number of charge times for which one act refunds units.
MAX_TIMES: Final = 100

#: Maximum number of leases in the list.
MAX_LEASES: Final = 25


@dataclass(frozen=True)
class Lease:
    """A lease."""

    began_us: int
    ends_at: datetime  # at the latest

    @property
    def began_at(self) -> datetime:
        return moment_of(self.began_us)


def give_back(counter: Counter, units: int) -> int:
    """Refund units of a counter and return by how many the remaining quota has grown.

    A sliding window counter refunds units of the current window of the clock, or, if that has no request
    yet, of the previous one. Raises EngineUnavailable.
    """
    before = _peek(counter.charge)
    limit = before.charge.limit
    wanted = min(units, limit.capacity - before.remaining)
    if wanted <= 0:
        return 0
    if limit.traits.refunds_by_time:
        receipts = _oldest(counter.charge, before.at_us, wanted)
    else:  # of several windows, one contains the last request
        times = [before.at_us - number * limit.window_us for number in range(limit.traits.windows)]
        receipts = [_receipt(counter.charge, wanted, at) for at in times]
    get_engine().refund(receipts)
    try:
        return max(_peek(counter.charge).remaining - before.remaining, 0)
    except EngineUnavailable:  # it was done, but the result is not known
        return wanted


def leases_of(counter: Counter) -> list[Lease]:
    """Return the leases of a concurrency counter, the oldest first, at most MAX_LEASES."""
    times = _charge_times(counter.charge, _peek(counter.charge, 0).at_us)
    window_us = counter.charge.limit.window_us
    return [Lease(began_us, moment_of(began_us + window_us)) for began_us, _ in times[:MAX_LEASES]]


def end_lease(counter: Counter, began_us: int) -> bool:
    """Release the lease that began at this time; False = there is none, or it has just ended."""
    if not 0 <= began_us < 2**53:  # Redis takes no larger number
        return False
    before = _peek(counter.charge, 0)
    get_engine().refund([_receipt(counter.charge, counter.capacity, began_us)])
    return _peek(counter.charge, 0).remaining > before.remaining


def _oldest(charge: Charge, at_us: int, wanted: int) -> list[Verdict]:
    """Return receipts for the oldest units, which would come back first."""
    receipts = []
    for time_us, units in _charge_times(charge, at_us)[:MAX_TIMES]:
        if wanted <= 0:
            break
        receipts.append(_receipt(charge, min(units, wanted), time_us))
        wanted -= units
    return receipts


def _charge_times(charge: Charge, at_us: int) -> list[tuple[int, int]]:
    """Return the times and units of a counter's charges, the oldest first; empty if your own engine cannot say."""
    read: Callable[[Charge, int], list[tuple[int, int]]] | None = getattr(get_engine(), "charge_times", None)
    return read(charge, at_us) if read else []


def _peek(charge: Charge, cost: int | None = None) -> Verdict:
    [verdict] = get_engine().peek([charge if cost is None else charge._replace(cost=cost)])
    return verdict


def _receipt(charge: Charge, units: int, spent_at_us: int) -> Verdict:
    """Return a receipt for units charged at this time; the engine refunds at most what was charged."""
    return Verdict(True, 0, 0.0, 0.0, 0.0, False, spent_at_us, charge, units, spent_at_us)
