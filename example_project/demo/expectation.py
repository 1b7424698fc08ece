"""How many requests each rule must have admitted, reckoned from the rule and from what the client saw.

Nothing here asks the application. An answer is a status, the names of the rules that refused it, and two moments
that the decision lies between. Where the rule fixes the number it is exact; where it depends on the moment of each
decision (a bucket that refills meanwhile) it is the narrowest range that can be proven.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    """A bucket: what it held at first, and what flowed in; less only where it stood full and ran over.

    At a refusal it held less than one cost. So from the last moment that it was full until then, its capacity and
    what flowed in meanwhile have been spent, but for less than one cost.
    """
    rate = Fraction(limit.quota, limit.window)
    low = limit.capacity + rate * Fraction(_longest_drain(rate, cost, offered, first))
    high = limit.capacity + rate * Fraction(last - first)
    return Range(floor(low / cost), floor(high / cost))


def _longest_drain(rate: Fraction, cost: int, offered: Iterable[Seen], first: float) -> float:
    """The longest time up to a refusal in which the bucket cannot have been full, in seconds; 0 without a refusal.

    It is full only when all that was spent has flowed in again, and what was answered has been spent for certain.
    """
    spent = sorted(one.answered for one in offered if one.admitted)
    full = [first, *(at for count, at in enumerate(spent) if rate * Fraction(at - first) >= count * cost)]
    longest = 0.0
    for refused in (one.sent for one in offered if one.refused_here):
        if rate * Fraction(refused - first) < bisect_left(spent, refused) * cost:
            longest = max(longest, refused - full[bisect_right(full, refused) - 1])
    return longest
