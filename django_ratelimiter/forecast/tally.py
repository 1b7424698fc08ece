"""What an earlier and a changed rule reject, added up over callers; of sampled ones, with a range for all."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import sqrt
from typing import Final, NamedTuple

from .evaluate import NONE_REJECTED, Evaluator, Rejected, Requests

#: What is counted, in requests and in callers with such a request: rejected by the earlier rule, by the changed one, by
#: the changed one alone, and by the earlier one alone.
BEFORE, AFTER, NEWLY, NO_LONGER = range(4)

#: The number of top callers, unless the user asks for more.
MAX_CALLERS: Final = 20

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


class TopCaller(NamedTuple):
    """A caller of whom requests are rejected. newly: by the changed rule alone. first: second of the first of them."""

    caller: str
    tier: str
    requests: int
    before: int
    after: int
    newly: int
    first: datetime

    @property
    def rank(self) -> tuple[int, int, str]:
        """What callers are sorted by: the most newly rejected requests come first."""
        return -self.newly, -self.after, self.caller


class Sums:
    """Callers and their requests. counts: of callers, then of requests, as named above; for each possible time."""

    def __init__(self, scenarios: int) -> None:
        self.callers = self.requests = 0
        self.counts: list[list[list[int]]] = [[[0] * 4, [0] * 4] for _ in range(scenarios)]

    def add(self, scenario: int, requests: int, before: Rejected, after: Rejected) -> None:
        """Add a caller. Each caller is added once for each scenario."""
        if not scenario:
            self.callers += 1
            self.requests += requests
        if before or after:
            newly, no_longer = _beyond(after, before), _beyond(before, after)
            callers, units = self.counts[scenario]
            for what, found in enumerate((before, after, newly, no_longer)):
                callers[what] += bool(found)
                units[what] += sum(found.values())

    def found(self, unit: int, what: int) -> Range:
        """Return the count: the likely one is that of the first time. unit: 0 = callers, 1 = requests."""
        found = [each[unit][what] for each in self.counts]
        return Range(min(found), found[0], max(found))


class Tally:
    """All callers, and those who are rejected most.

    sides: the earlier and the changed rule; `None` = it rejects nothing. scenarios: how many possible times of their
    requests are judged; 1 = they are known. most: of the top callers.
    """

    def __init__(self, sides: Sequence[Evaluator | None], scenarios: int, most: int = MAX_CALLERS) -> None:
        (self._before, self._after), self._most = sides, most
        self.total: Sums = Sums(scenarios)
        self.top: list[TopCaller] = []

    def add(
        self, who: str, scenarios: Sequence[Requests], rejected_before: Callable[[Requests], Rejected] | None = None
    ) -> None:
        """Add a caller. rejected_before: by a rule that counts these requests otherwise."""
        for number, requests in enumerate(scenarios):
            before = after = NONE_REJECTED
            if rejected_before is not None:
                before = rejected_before(requests)
            elif self._before is not None:
                before = self._before.rejected(requests)
            if self._after is not None:
                after = self._after.rejected(requests)
            self.total.add(number, requests.total, before, after)
            if after and not number:
                self._rank(who, requests, before, after)

    def _rank(self, who: str, requests: Requests, before: Rejected, after: Rejected) -> None:
        newly, rejected = _beyond(after, before), sum(after.values())
        first = min(newly or after)
        at, tier = datetime.fromtimestamp(requests.times[first] // 1_000_000, UTC), requests.kind(first).tier
        counts = requests.total, sum(before.values()), rejected, sum(newly.values())
        insort(self.top, TopCaller(who, tier, *counts, at), key=lambda each: each.rank)
        del self.top[self._most :]


def _beyond(found: Rejected, other: Rejected) -> Rejected:
    """Return the requests that are in one of these alone."""
    return {place: count - more for place, count in found.items() if count > (more := other.get(place, 0))}


def all_callers(found: Range) -> Range:
    """Return the number of all callers, given that of the sampled ones.

    Low and high are those of the score interval of a Poisson count: how many callers there are in all is known by the
    sample, too.
    """
    return Range(_score(found.low, -1), found.about, _score(found.high, 1)).times(SAMPLED_ONE_IN)


def all_requests(found: Range, callers: Range, scale: float, total: float) -> Range:
    """Return the requests of all callers, given those of the sampled ones.

    callers: who made them. scale: requests of all callers for each request of a sampled one. total: of all, rejected or
    not. A sum with few callers is only known to about its square root: with four callers, to a factor of two.
    """
    low_error, high_error = (_ERRORS / sqrt(count) if count else 1.0 for count in (callers.low, callers.high))
    low, high = found.low * scale * max(0.0, 1 - low_error), found.high * scale * (1 + high_error)
    return Range(low, min(found.about * scale, total), min(high, total))


def _score(found: float, side: int) -> float:
    return max(0.0, found + _ERRORS**2 / 2 + side * _ERRORS * sqrt(found + _ERRORS**2 / 4))
