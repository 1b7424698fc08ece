"""From a sample to all callers: estimates, with a range that probably contains the true value. Pure functions."""

from __future__ import annotations

from math import sqrt
from typing import Final, NamedTuple

#: One partition in this many is sampled.
SAMPLED_ONE_IN: Final = 16

#: Standard errors of a range on each side: 19 of 20 ranges contain the true value.
_ERRORS: Final = 1.96


class Range(NamedTuple):
    """A number between `low` and `high`, as far as is known; `about` is the best estimate."""

    low: float
    about: float
    high: float

    def times(self, factor: float) -> Range:
        """Return the range with each of the three numbers times this."""
        return Range(self.low * factor, self.about * factor, self.high * factor)


NOTHING: Final = Range(0, 0, 0)


def callers(found: Range) -> Range:
    """Return the number of all callers, given that of the sampled ones.

    Low and high are those of the score interval of a Poisson count: how many callers there are in all is known by the
    sample, too.
    """
    return Range(_score(found.low, -1), found.about, _score(found.high, 1)).times(SAMPLED_ONE_IN)


def requests(found: Range, callers: Range, scale: float, total: float) -> Range:
    """Return the requests of all callers, given those of the sampled ones.

    callers: who made them. scale: requests of all callers for each request of a sampled one. total: of all, rejected or
    not. A sum with few callers is only known to about its square root: with four callers, to a factor of two.
    """
    low_error, high_error = (_ERRORS / sqrt(count) if count else 1.0 for count in (callers.low, callers.high))
    low, high = found.low * scale * max(0.0, 1 - low_error), found.high * scale * (1 + high_error)
    return Range(low, min(found.about * scale, total), min(high, total))


def _score(found: float, side: int) -> float:
    return max(0.0, found + _ERRORS**2 / 2 + side * _ERRORS * sqrt(found + _ERRORS**2 / 4))
