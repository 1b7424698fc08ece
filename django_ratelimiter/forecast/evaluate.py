"""What rules reject of callers' requests, by the engine's own algorithms, run on their times.

Added up over callers, for an earlier and a changed rule; of sampled ones, with a range for all.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from heapq import heappop, heappush
from math import sqrt
from typing import Final, NamedTuple

from ..engine.algorithms import ALLOW, STEPS, Allow, State
from ..engine.base import Verdict, leases
from ..engine.call import Answer, Call, CallTemplate
from ..engine.limits import EXACT, Limit, Terms
from ..engine.memory.counters import MemoryCounters
from ..limiter.charges import NO_ENTITLEMENT
from ..limiter.templates import MaxDelay, RuleTemplate
from ..rules.records import RuleRecord
from ..rules.tiers import Entitlement

#: What is counted, in requests and in callers with such a request: rejected by the earlier rule, by the changed one, by
#: the changed one alone, and by the earlier one alone.
BEFORE, AFTER, NEWLY, NO_LONGER = range(4)

#: The number of top callers, unless the user asks for more.
MAX_CALLERS: Final = 20

#: One partition in this many is sampled.
SAMPLED_ONE_IN: Final = 16

#: Standard errors of a range on each side: 19 of 20 ranges contain the true value.
_ERRORS: Final = 1.96

#: The places of requests at one time, with how many of them are rejected.
Rejected = Mapping[int, int]
NONE_REJECTED: Final[Rejected] = {}


class Kind(NamedTuple):
    """What the requests of one counter may differ in, besides their times.

    entitlements: of their caller under the earlier and the changed rules. cost: units; `None` = the rule's. has_failed:
    the response was a failure. is_missing: the rule rejects the request, because it lacks the value to count by.
    """

    entitlements: tuple[Entitlement, Entitlement] = (NO_ENTITLEMENT, NO_ENTITLEMENT)
    cost: int | None = None
    has_failed: bool = False
    is_missing: bool = False

    @property
    def tier(self) -> str:
        """The slug of the caller's tier under the changed rules; "" = none."""
        tier = self.entitlements[1].tier
        return tier.slug if tier else ""


class Requests(NamedTuple):
    """The requests of one counter, the earliest first.

    times: microseconds since the Unix epoch. kinds: one for each time, or a single one. counts: the requests at each
    time; empty = one. durations: microseconds until the response ends; empty = not known. numbers: of the requests
    among all others; empty = they have none.
    """

    times: Sequence[int]
    kinds: Sequence[Kind]
    counts: Sequence[int] = ()
    durations: Sequence[int] = ()
    numbers: Sequence[int] = ()

    @property
    def total(self) -> int:
        """The number of requests."""
        return sum(self.counts) if self.counts else len(self.times)

    def kind(self, place: int) -> Kind:
        """Return the kind of the requests at this place."""
        return self.kinds[place if len(self.kinds) > 1 else 0]


class Evaluator:
    """One rule as if it were enforced, and the only one.

    side: which of the entitlements of a `Kind` holds. max_delay: how long requests can be delayed, see `RuleTemplates`.
    """

    def __init__(self, rule: RuleRecord, side: int, max_delay: MaxDelay = "rule") -> None:
        self.rule: RuleRecord = replace(rule, mode="enforce")
        self._side, self._max_delay = side, max_delay
        self._calls: dict[Kind, Call | None] = {}

    def rejects(self, requests: Requests) -> bool:
        """Return whether the rule rejects any of the requests of one counter."""
        return any(True for _found in self._found(requests))

    def rejected(self, requests: Requests) -> Rejected:
        """Return what the rule rejects of the requests of one counter."""
        return dict(self._found(requests)) or NONE_REJECTED

    def _found(self, requests: Requests) -> Iterable[tuple[int, int]]:
        kinds = [*dict.fromkeys(requests.kinds)]
        call = self._call(kinds[0])
        if len(kinds) > 1 or (call and not self._is_simple(call)):
            return self._one_by_one(requests) if any(map(self._call, kinds)) else ()
        if call is None:
            return ()
        cost = call[0].cost
        if not cost or requests.total * cost <= min(charge.limit.capacity for charge in call):
            return ()  # all would be allowed at once
        return rejected_of([charge.limit for charge in call], cost, requests)

    def _call(self, kind: Kind) -> Call | None:
        """Return the charges of such requests; `None` = the rule does not limit them."""
        if kind not in self._calls:
            template = RuleTemplate(self.rule, kind.entitlements[self._side])
            charges = template.charges(kind.cost, self._max_delay, is_missing=kind.is_missing)
            self._calls[kind] = Call(CallTemplate(charges), ("",) * len(charges)) if charges else None
        return self._calls[kind]

    def _is_simple(self, call: Call) -> bool:
        """Return whether requests at the same time can be charged together, and nothing is refunded."""
        rule = self.rule
        return not (
            rule.count_refusals
            or rule.charge_when != "any"
            or any(charge.limit.holds or charge.limit.holds_leases for charge in call)
        )

    def _one_by_one(self, requests: Requests) -> Iterator[tuple[int, int]]:
        """Decide each request as `MemoryEngine` does, refund what its response does not earn, and end its leases."""
        counters = MemoryCounters()
        in_progress: list[tuple[int, int, list[Verdict]]] = []
        for place, at in enumerate(requests.times):
            kind = requests.kind(place)
            call = self._call(kind)
            if call is None:
                continue
            named, rejected = counters.named(call), 0
            for number in range(requests.counts[place] if requests.counts else 1):
                while in_progress and in_progress[0][0] <= at:
                    counters.refund(heappop(in_progress)[2])
                answer = Answer.of(call, counters.decide(named, at, spending=True))
                if answer.is_rejected:
                    rejected += 1
                elif self.rule.charge_when == ("success" if kind.has_failed else "failure"):
                    counters.refund(answer)
                elif call.template.takes_leases:
                    waited = max(verdict.delay for verdict in answer)
                    duration = requests.durations[place] if requests.durations else 0
                    until = at + round(waited * 1_000_000) + max(duration, 0)
                    heappush(in_progress, (until, place * EXACT + number, [*leases(answer)]))
            if rejected:
                yield place, rejected


def evaluators(before: RuleRecord | None, after: RuleRecord, max_delay: MaxDelay = "rule") -> list[Evaluator | None]:
    """Return an earlier and a changed rule; `None` in place of one that rejects nothing."""
    return [
        Evaluator(rule, side, max_delay) if rule and not rule.is_off else None
        for side, rule in enumerate((before, after))
    ]


def rejected_of(limits: Sequence[Limit], cost: int, requests: Requests) -> Iterator[tuple[int, int]]:
    """Yield what these limits together reject of requests with this cost, all or nothing for each request."""
    if len(limits) == 1 and limits[0].is_fixed and not requests.counts:
        yield from _rejected_by_one(limits[0], cost, requests.times)
        return
    states: list[State | None] = [None] * len(limits)
    allows, looks = [ALLOW[each.algorithm] for each in limits], [STEPS[each.algorithm].look for each in limits]
    for place, at in enumerate(requests.times):
        count = fits = requests.counts[place] if requests.counts else 1
        terms = [limit.terms_at(at) for limit in limits]
        after = _charged(allows, states, at, count * cost, terms)
        if None in after:
            fits = min(look(state, at, each)[0] for look, state, each in zip(looks, states, terms, strict=True)) // cost
            yield place, count - fits
            if not fits:
                continue
            after = _charged(allows, states, at, fits * cost, terms)
        states = [each[0] for each in after]  # type: ignore[index]


def _rejected_by_one(limit: Limit, cost: int, times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield what a limit rejects of single requests: `rejected_of` for what nearly all logs and rules are."""
    allow, terms = ALLOW[limit.algorithm], limit.terms
    state: State | None = None
    for place, at in enumerate(times):
        allowed = allow(state, at, cost, terms)
        if allowed is None:
            yield place, 1
        else:
            state = allowed[0]


def _charged(
    allows: Sequence[Allow], states: Sequence[State | None], at: int, units: int, terms: Sequence[Terms]
) -> list[tuple[State, int, int] | None]:
    return [allow(state, at, units, each) for allow, state, each in zip(allows, states, terms, strict=True)]


class Range(NamedTuple):
    """A number between `low` and `high`, as far as is known; `about` is the best estimate."""

    low: float
    about: float
    high: float


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


class Tally:
    """All callers and their requests, and those who are rejected most.

    sides: the earlier and the changed rule; `None` = it rejects nothing. scenarios: how many possible times of their
    requests are judged; 1 = they are known. most: of the top callers. counts: of callers, then of requests, as named
    above; for each possible time.
    """

    def __init__(self, sides: Sequence[Evaluator | None], scenarios: int, most: int = MAX_CALLERS) -> None:
        (self._before, self._after), self._most = sides, most
        self.callers = self.requests = 0
        self.counts: list[list[list[int]]] = [[[0] * 4, [0] * 4] for _ in range(scenarios)]
        self.top: list[TopCaller] = []

    def add(
        self, who: str, scenarios: Sequence[Requests], rejected_before: Callable[[Requests], Rejected] | None = None
    ) -> None:
        """Add a caller. rejected_before: by a rule that counts these requests otherwise."""
        self.callers += 1
        self.requests += scenarios[0].total
        for number, requests in enumerate(scenarios):
            before = after = NONE_REJECTED
            if rejected_before is not None:
                before = rejected_before(requests)
            elif self._before is not None:
                before = self._before.rejected(requests)
            if self._after is not None:
                after = self._after.rejected(requests)
            if before or after:
                self._count(number, before, after)
            if after and not number:
                self._rank(who, requests, before, after)

    def _count(self, scenario: int, before: Rejected, after: Rejected) -> None:
        callers, units = self.counts[scenario]
        for what, found in enumerate((before, after, _beyond(after, before), _beyond(before, after))):
            callers[what] += bool(found)
            units[what] += sum(found.values())

    def _rank(self, who: str, requests: Requests, before: Rejected, after: Rejected) -> None:
        newly, rejected = _beyond(after, before), sum(after.values())
        first = min(newly or after)
        at, tier = datetime.fromtimestamp(requests.times[first] // 1_000_000, UTC), requests.kind(first).tier
        counts = requests.total, sum(before.values()), rejected, sum(newly.values())
        insort(self.top, TopCaller(who, tier, *counts, at), key=lambda each: each.rank)
        del self.top[self._most :]

    def found(self, unit: int, what: int) -> Range:
        """Return the count: the likely one is that of the first time. unit: 0 = callers, 1 = requests."""
        found = [each[unit][what] for each in self.counts]
        return Range(min(found), found[0], max(found))


def _beyond(found: Rejected, other: Rejected) -> Rejected:
    """Return the requests that are in one of these alone."""
    return {place: count - more for place, count in found.items() if count > (more := other.get(place, 0))}


def all_callers(found: Range) -> Range:
    """Return the number of all callers, given that of the sampled ones.

    Low and high are those of the score interval of a Poisson count: how many callers there are in all is known by the
    sample, too.
    """
    return Range(*(SAMPLED_ONE_IN * each for each in (_score(found.low, -1), found.about, _score(found.high, 1))))


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
