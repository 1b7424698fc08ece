"""What an earlier and a changed rule reject, added up over callers."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from .estimates import Range
from .evaluate import NONE_REJECTED, Evaluator, Rejected, Requests

#: What is counted, in requests and in callers with such a request: rejected by the earlier rule, by the changed one, by
#: the changed one alone, and by the earlier one alone.
BEFORE, AFTER, NEWLY, NO_LONGER = range(4)

#: The number of top callers, unless the user asks for more.
MAX_CALLERS: Final = 20


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
