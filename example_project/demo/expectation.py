"""How many requests each rule must have allowed, computed from the rule and from what the client saw.

This module does not call the application. An answer has a status, the names of the rules that rejected the request,
and two times; the decision was between them. If the rule determines the number, it is exact; if it depends on the time
of each decision (a bucket that refills meanwhile), it is the narrowest range that can be proven.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import NamedTuple

from ..catalogue import BUCKET, EXACT, FIXED, Limit


class Range(NamedTuple):
    """A number from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} - {self.high:,}"

    def holds(self, number: int) -> bool:
        """Return whether the number is in the range."""
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one request, for one rule.

    sent, answered: Unix seconds; the server decided between them.
    admitted: every rule allowed it. rejected_here: this rule rejected it (others may have, too).
    """

    sent: float
    answered: float
    admitted: bool
    rejected_here: bool


def expected_of_key(limits: Sequence[Limit], cost: int, seen: Iterable[Seen]) -> Range:
    """Return how many requests on one counter must have been allowed.

    A request that only other rules rejected used no quota here, so it is ignored. None of several
    limits is exceeded, and the limit that rejected was used up: the smallest bound counts on either side.
    """
    offered = [one for one in seen if one.admitted or one.rejected_here]
    bounds = [_bounds(limit, cost, offered) for limit in limits if limit.quota]
    total = len(offered)
    return Range(min([total, *(b.low for b in bounds)]), min([total, *(b.high for b in bounds)]))


def _bounds(limit: Limit, cost: int, offered: Sequence[Seen]) -> Range:
    if not offered:
        return Range(0, 0)
    first = min(one.sent for one in offered)
    last = max(one.answered for one in offered)
    if limit.algorithm == BUCKET:
        return _bucket(limit, cost, offered, first, last)
    return _window(limit, cost, first, last)


def _window(limit: Limit, cost: int, first: float, last: float) -> Range:
    """Return the range for a window of the clock: its quota, and more only if the traffic crossed a boundary.

    An exact window has no boundaries: more is only allowed if the traffic is longer than a window.
    The sliding counter still includes the part of the previous window that is not over: e seconds after
    the boundary, before x (1 - e/window) + now <= quota, so before + now <= quota x (1 + e/window).
    """
    quota = limit.quota // cost
    if limit.algorithm == EXACT:
        return Range(quota, quota * (int((last - first) // limit.window) + 1))
    edges = int(last // limit.window - first // limit.window)
    if edges == 1 and limit.algorithm != FIXED:
        gone = Fraction(last) % limit.window / limit.window
        return Range(quota, floor(limit.quota * (1 + gone) / cost))
    return Range(quota, quota * (edges + 1))


def _bucket(limit: Limit, cost: int, offered: Sequence[Seen], first: float, last: float) -> Range:
    """Return the range for a bucket: its initial content and its refill; less if it may have been full meanwhile.

    Take the last rejection, and the last time before it at which the bucket was full. In between, its capacity and the
    refill were used, except for less than one cost; everything after that rejection was allowed. The smallest sum
    of these, over all possible times of the rejection, is the lower bound.
    """
    rate = Fraction(limit.quota, limit.window)
    sent = sorted(one.sent for one in offered)
    full = _may_be_full(limit.capacity, rate, cost, offered)
    low = len(offered)
    for rejected in (*sent, *full):
        seconds = Fraction(rejected - full[bisect_right(full, rejected) - 1])
        came_after = len(sent) - bisect_right(sent, rejected)
        low = min(low, floor((limit.capacity + rate * seconds) / cost) + came_after)
    return Range(low, floor((limit.capacity + rate * Fraction(last - first)) / cost))


def _may_be_full(capacity: int, rate: Fraction, cost: int, offered: Iterable[Seen]) -> list[float]:
    """Return the last times of all periods in which the bucket can have been full, in order.

    It is full at first. Later it can be full again only if all requests between the start, or a rejection, and that
    time used less than the refill; a request was decided before its answer and after it was sent.
    """
    moments = [(one.sent, one.answered) for one in offered]
    sent, first = sorted(at for at, _ in moments), min(at for at, _ in moments)
    full, came, most = [first], 0, -rate * Fraction(first)
    for answered, moment in enumerate(sorted(at for _, at in moments)):
        while came < len(sent) and sent[came] < moment:
            came += 1
            most = max(most, came * cost - rate * Fraction(sent[came - 1]) - (capacity - cost))
        if answered * cost - rate * Fraction(moment) <= most:
            full.append(moment)
    return full
