"""The difference between two rule sets over the same traffic, in requests and in callers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from .outcomes import ReplayOutcome, RuleOutcome

#: Hours of the clock, in microseconds.
HOUR_US: Final = 3_600_000_000


class RequestChange(NamedTuple):
    """Requests that were decided twice.

    requests: all of them. before, after: rejected by the first rule set, and by the second. newly: rejected only by the
    second. no_longer: rejected only by the first. shadow: a rule in shadow of the second would reject.
    """

    requests: int = 0
    before: int = 0
    after: int = 0
    newly: int = 0
    no_longer: int = 0
    shadow: int = 0

    @property
    def same(self) -> int:
        """Requests with the same decision in both rule sets."""
        return self.requests - self.newly - self.no_longer

    def plus(self, other: RequestChange) -> RequestChange:
        """Return the sum."""
        return RequestChange(*map(sum, zip(self, other, strict=True)))


@dataclass(slots=True)
class ChangeRow:
    """A row of a table: requests, and the different callers that are newly or no longer rejected."""

    requests: RequestChange = field(default_factory=RequestChange)
    newly: int = 0
    no_longer: int = 0


class CallerChange(NamedTuple):
    """A caller with different decisions in the two rule sets.

    newly, no_longer: requests. first_us: time of the first newly rejected request; `None` = never. rule: the rule that
    rejected it. tier: its slug; empty = none.
    """

    caller: str
    newly: int
    no_longer: int
    first_us: int | None
    rule: str
    tier: str


@dataclass(slots=True)
class Difference:
    """All differences. callers: number of different ones. by_hour: keys are "2026-11-22 18:00", in UTC.

    newly_callers, no_longer_callers: different callers with a request that is newly, or no longer, rejected.
    top: callers that are newly rejected, those with most such requests first.
    """

    total: RequestChange
    callers: int
    newly_callers: int
    no_longer_callers: int
    by_rule: dict[str, ChangeRow]
    by_tier: dict[str, ChangeRow]
    by_view: dict[str, ChangeRow]
    by_hour: dict[str, ChangeRow]
    top: list[CallerChange]

    @property
    def share_of_requests(self) -> float:
        """The share of requests that are newly rejected, from 0 to 1."""
        return self.total.newly / self.total.requests if self.total.requests else 0.0

    @property
    def share_of_callers(self) -> float:
        """The share of callers with a request that is newly rejected, from 0 to 1."""
        return self.newly_callers / self.callers if self.callers else 0.0


class _Rejected:
    """The data of one caller that a rule set rejects."""

    __slots__ = ("first_us", "newly", "no_longer", "rule", "tier")

    def __init__(self) -> None:
        self.newly = self.no_longer = 0
        self.first_us: int | None = None
        self.rule = self.tier = ""


class Tally:
    """Counts outcomes of requests under two rule sets; under one, if both outcomes are the same object."""

    def __init__(self) -> None:
        #: By view, hour since the Unix epoch, and both outcomes. Grows with kinds of requests, not with requests.
        self.counts: dict[tuple[str, int, ReplayOutcome, ReplayOutcome], int] = {}
        self.callers = set[str]()
        self.first_us = self.last_us = 0
        self._rejected: dict[str, _Rejected] = {}
        self._sets: defaultdict[tuple[str, str, bool], set[str]] = defaultdict(set)

    @property
    def remembered(self) -> int:
        """How many callers are remembered, each as often as it is."""
        return len(self.callers) + len(self._rejected) + sum(map(len, self._sets.values()))

    def add(self, time_us: int, view: str, caller: str, before: ReplayOutcome, after: ReplayOutcome) -> None:
        """Count a request."""
        key = view, time_us // HOUR_US, before, after
        counts = self.counts
        counts[key] = counts.get(key, 0) + 1
        if before is not after and before.rejected is not after.rejected:
            self._note(time_us, view, caller, before, after)

    def _note(self, time_us: int, view: str, caller: str, before: ReplayOutcome, after: ReplayOutcome) -> None:
        newly = after.rejected
        tier = "".join(_tiers(before.rules, after.rules))
        rules = _changed_rules(before, after)
        for kind, name in (
            ("all", ""),
            ("view", view),
            ("tier", tier),
            ("hour", hour_name(time_us // HOUR_US)),
            *(("rule", rule) for rule in rules),
        ):
            self._sets[kind, name, newly].add(caller)
        known = self._rejected.get(caller)
        if known is None:
            known = self._rejected[caller] = _Rejected()
        known.tier = tier
        if not newly:
            known.no_longer += 1
            return
        known.newly += 1
        if known.first_us is None:
            known.first_us, known.rule = time_us, ", ".join(rules)

    def difference(self, most: int = 20) -> Difference:
        """Return the difference. most: maximum number of callers in its list."""
        total, tables = _tables(self.counts)
        for (kind, name, newly), distinct in self._sets.items():
            row = ChangeRow() if kind == "all" else tables[kind].setdefault(name, ChangeRow())
            if newly:
                row.newly = len(distinct)
            else:
                row.no_longer = len(distinct)
        top = sorted(
            (item for item in self._rejected.items() if item[1].newly), key=lambda item: (-item[1].newly, item[0])
        )
        return Difference(
            total,
            len(self.callers),
            len(self._sets["all", "", True]),
            len(self._sets["all", "", False]),
            tables["rule"],
            tables["tier"],
            tables["view"],
            dict(sorted(tables["hour"].items())),
            [
                CallerChange(caller, known.newly, known.no_longer, known.first_us, known.rule, known.tier)
                for caller, known in top[:most]
            ],
        )


def hour_name(hour: int) -> str:
    """Return an hour since the Unix epoch as "2026-11-22 18:00"."""
    return f"{datetime.fromtimestamp(hour * 3_600, UTC):%Y-%m-%d %H:%M}"


def _changed_rules(before: ReplayOutcome, after: ReplayOutcome) -> list[str]:
    """Return the rejecting rules of the rule set that rejects."""
    which = after if after.rejected else before
    return [each.rule for each in which.rules if each.rejected and not each.shadow] or ["(access list)"]


def _tables(
    counts: Mapping[tuple[str, int, ReplayOutcome, ReplayOutcome], int],
) -> tuple[RequestChange, dict[str, dict[str, ChangeRow]]]:
    """Return the sum, and rows by rule, tier, view and hour."""
    total = RequestChange()
    tables: dict[str, dict[str, ChangeRow]] = {"rule": {}, "tier": {}, "view": {}, "hour": {}}
    for (view, hour, before, after), number in counts.items():
        change = _change(before.rejected, after.rejected, after.would_reject, number)
        total = total.plus(change)
        tiers = _tiers(before.rules, after.rules)
        for kind, names in (("view", [view]), ("hour", [hour_name(hour)]), ("tier", tiers)):
            for name in names:
                _add(tables[kind], name, change)
        for name, one, other in _pairs(before.rules, after.rules):
            shadow = other is not None and other.shadow and other.rejected
            _add(tables["rule"], name, _change(_rejects(one), _rejects(other), shadow, number))
    return total, tables


def _add(table: dict[str, ChangeRow], name: str, change: RequestChange) -> None:
    row = table.setdefault(name, ChangeRow())
    row.requests = row.requests.plus(change)


def _change(before: bool, after: bool, shadow: bool, number: int) -> RequestChange:
    return RequestChange(
        number,
        number * before,
        number * after,
        number * (after and not before),
        number * (before and not after),
        number * shadow,
    )


def _rejects(outcome: RuleOutcome | None) -> bool:
    return outcome is not None and outcome.rejected and not outcome.shadow


def _tiers(before: Iterable[RuleOutcome], after: Iterable[RuleOutcome]) -> list[str]:
    """Return the tier of the caller; several if an entry point decided before authentication."""
    return list(dict.fromkeys([each.tier for each in after] or [each.tier for each in before]))[-1:]


def _pairs(
    before: tuple[RuleOutcome, ...], after: tuple[RuleOutcome, ...]
) -> Iterable[tuple[str, RuleOutcome | None, RuleOutcome | None]]:
    """Yield each rule with its outcomes in both."""
    first, second = ({each.rule: each for each in rules} for rules in (before, after))
    for name in {**first, **second}:
        yield name, first.get(name), second.get(name)
