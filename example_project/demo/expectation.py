"""How many requests each rule must have admitted, reckoned from the rule and from what the client saw.

Nothing here asks the application. An answer is a status, the names of the rules that refused it, and two moments
that the decision lies between. Where the rule fixes the number it is exact; where it depends on the moment of each
decision (a bucket that refills meanwhile) it is the narrowest range that can be proven.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import NamedTuple

from ..catalogue import BUCKET, FIXED, Limit


class Range(NamedTuple):
    """A number that is known to lie from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} - {self.high:,}"

    def holds(self, number: int) -> bool:
        """Whether the number lies in the range."""
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one request, as one rule is concerned.

    sent, answered: Unix seconds; the server decided somewhere between them.
    admitted: it passed every rule. refused_here: this rule refused it (others may have, too).
    """

    sent: float
    answered: float
    admitted: bool
    refused_here: bool


def expected_of_key(limits: Sequence[Limit], cost: int, seen: Iterable[Seen]) -> Range:
    """How many requests on one counter must have been admitted.

    A request that only other rules refused has spent nothing here, so it is as if it had never come. Of several
    limits none is exceeded, and whichever refused had been used up: the smallest bound counts on either side.
    """
    offered = [one for one in seen if one.admitted or one.refused_here]
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
    """A window of the clock: its quota, and more only where the traffic went over the edge of one.

    The sliding counter still holds the part of the window before that has not slid out: with e seconds gone since
    the edge, before x (1 - e/window) + now <= quota, so before + now <= quota x (1 + e/window).
    """
    quota = limit.quota // cost
    edges = int(last // limit.window - first // limit.window)
    if edges == 1 and limit.algorithm != FIXED:
        gone = Fraction(last) % limit.window / limit.window
        return Range(quota, floor(limit.quota * (1 + gone) / cost))
    return Range(quota, quota * (edges + 1))


def _bucket(limit: Limit, cost: int, offered: Sequence[Seen], first: float, last: float) -> Range:
    """A bucket: what it held at first and what flowed in; less where it may have stood full and run over.

    Take the last refusal, and the last moment before it that the bucket was full. In between, its capacity and what
    flowed in were spent but for less than one cost; all that came after that refusal was admitted. The smallest sum
    of these over all moments that the refusal can have had is the lower bound.
    """
    rate = Fraction(limit.quota, limit.window)
    sent = sorted(one.sent for one in offered)
    full = _may_be_full(limit.capacity, rate, cost, offered)
    low = len(offered)
    for refused in (*sent, *full):
        seconds = Fraction(refused - full[bisect_right(full, refused) - 1])
        came_after = len(sent) - bisect_right(sent, refused)
        low = min(low, floor((limit.capacity + rate * seconds) / cost) + came_after)
    return Range(low, floor((limit.capacity + rate * Fraction(last - first)) / cost))


def _may_be_full(capacity: int, rate: Fraction, cost: int, offered: Iterable[Seen]) -> list[float]:
    """The last moments of all spans in which the bucket can have been full, in their order.

    It is full at first. Later it can be full again only if all requests between the start, or a refusal, and that
    moment spent less than what flowed in; a request was decided before its answer and after it was sent.
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
