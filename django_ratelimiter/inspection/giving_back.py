"""Refund units of a counter, and end leases: by refunds, with receipts made from peeks.

For a window that is counted, and a bucket, any receipt with the current time works. Algorithms that store each
request's time only refund units that were charged at the time in the receipt. The engine reports when the oldest of
them expire, which is one window later.
"""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Annotated, Final, NamedTuple

from ..backend import get_engine
from ..engine.base import Charge, Verdict
from ..engine.limits import Algorithm, Limit
from ..engine.registry import STRICTEST
from ..exceptions import EngineUnavailable
from .counters import Counter, moment_of

#: Maximum number of charge times for which one act refunds units: each takes two calls.
MAX_STEPS: Final = 100

#: Maximum number of leases in the list: each takes a call.
MAX_LEASES: Final = 25

#: The algorithm that holds leases.
_LEASES: Final = next(algorithm for algorithm in Algorithm if algorithm.traits.holds_leases)


class LeaseLog(Limit):
    """A limit that reads the leases of another as a log of requests: its peeks return each lease's end, by cost.

    Concurrency itself only reports the end of the oldest, because the others may be released at any time.
    """

    @cached_property
    def tag(self) -> str:
        """The tag of the limit with the leases."""
        return f":{_LEASES.letter}{super().tag[2:]}"


class Lease(NamedTuple):
    """A lease."""

    began_us: Annotated[int, "Microseconds since 1970. Send it to end this lease."]
    ends_at: Annotated[datetime, "At the latest."]

    @property
    def began_at(self) -> datetime:
        return moment_of(self.began_us)


def give_back(counter: Counter, units: int) -> int:
    """Refund units of a counter and return by how many the remaining quota has grown.

    A sliding window counter refunds units of the current window of the clock, or, if that has no request
    yet, of the previous one. Raises EngineUnavailable.
    """
    before = _peek(counter.charge)
    wanted = min(units, before.charge.limit.capacity - before.remaining)
    if wanted <= 0:
        return 0
    limit = counter.charge.limit
    if limit.traits.refunds_by_time:
        return _give_back_by_time(counter.charge, before, wanted)
    # Of several windows, one contains the last request.
    times = [before.at_us - number * limit.window_us for number in range(limit.traits.windows)]
    get_engine().refund([_receipt(counter.charge, wanted, at) for at in times])
    try:
        return max(_peek(counter.charge).remaining - before.remaining, 0)
    except EngineUnavailable:  # it was done, but the result is not known
        return wanted


def leases_of(counter: Counter) -> list[Lease]:
    """Return the leases of a concurrency counter, the oldest first, at most MAX_LEASES: one call for each."""
    charge = counter.charge._replace(limit=_as_log(counter.charge.limit), max_delay=None)
    found: list[Lease] = []
    verdict = _peek(charge, 0)
    remaining, used = verdict.remaining, charge.limit.capacity - verdict.remaining
    for unit in range(1, used + 1):
        verdict = _peek(charge, remaining + unit)
        if verdict.allowed or verdict.retry_after is None:
            break
        lease = Lease(_spent_at(verdict), moment_of(verdict.at_us + _wait_us(verdict)))
        if lease not in found:
            found.append(lease)
        if len(found) == MAX_LEASES:
            break
    return found


def end_lease(counter: Counter, began_us: int) -> bool:
    """Release the lease that began at this time; False = there is none, or it has just ended."""
    before = _peek(counter.charge, 0)
    get_engine().refund([_receipt(counter.charge, counter.capacity, began_us)])
    return _peek(counter.charge, 0).remaining > before.remaining


def _give_back_by_time(charge: Charge, before: Verdict, wanted: int) -> int:
    """Refund the oldest units, which would come back first: one charge time after the other."""
    remaining, target = before.remaining, before.remaining + wanted
    for _ in range(MAX_STEPS):
        verdict = _peek(charge, remaining + 1)
        if verdict.remaining >= target or verdict.allowed or verdict.retry_after is None:
            remaining = max(remaining, verdict.remaining)
            break
        get_engine().refund([_receipt(charge, target - verdict.remaining, _spent_at(verdict))])
        after = _peek(charge, 0).remaining
        if after <= verdict.remaining:  # others use quota as fast, or a slot has just expired
            break
        remaining = after
        if remaining >= target:
            break
    return max(remaining - before.remaining, 0)


def _peek(charge: Charge, cost: int | None = None) -> Verdict:
    [verdict] = get_engine().peek([charge if cost is None else charge._replace(cost=cost)])
    return verdict


def _wait_us(verdict: Verdict) -> int:
    return round((verdict.retry_after or 0) * 1_000_000)


def _spent_at(verdict: Verdict) -> int:
    """Return the time of the charges that must expire before this verdict's cost is allowed."""
    return verdict.at_us + _wait_us(verdict) - verdict.charge.limit.window_us


def _receipt(charge: Charge, units: int, spent_at_us: int) -> Verdict:
    """Return a receipt for units charged at this time; the engine refunds at most what was charged."""
    return Verdict(True, 0, 0.0, 0.0, 0.0, False, spent_at_us, charge, units, spent_at_us)


def _as_log(limit: Limit) -> Limit:
    return LeaseLog(limit.quota, limit.window, STRICTEST)
