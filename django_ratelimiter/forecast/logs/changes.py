"""What two rule sets decide about the same traffic, in requests and in callers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from .outcomes import ReplayOutcome, RuleOutcome

#: Hours of the clock, in microseconds.
HOUR_US: Final = 3_600_000_000

#: The name of callers without any identity. They count as one caller if some of their decisions differ, else as none.
UNKNOWN: Final = "(unknown)"

#: What the rows of a table are about.
Subject = Literal["rule", "tier", "view", "hour"]


@dataclass(slots=True)
class Change:
    """Some requests that two rule sets have decided, in numbers."""

    requests: int = 0
    #: Requests that the first rule set rejects, and that the second rejects.
    before: int = 0
    after: int = 0
    #: Requests that only the second rejects, and that only the first rejects.
    newly: int = 0
    no_longer: int = 0
    #: Requests that a rule in shadow of the second would reject, and that are not rejected.
    shadow: int = 0
    #: Different callers with a request that is newly, or no longer, rejected.
    callers_newly: int = 0
    callers_no_longer: int = 0

    @property
    def same(self) -> int:
        """Requests with the same decision in both rule sets."""
        return self.requests - self.newly - self.no_longer

    def add(self, number: int, before: bool, after: bool, shadow: bool) -> None:
        """Add requests with these decisions."""
        self.requests += number
        self.before += number * before
        self.after += number * after
        self.newly += number * (after and not before)
        self.no_longer += number * (before and not after)
        self.shadow += number * (shadow and not after)


@dataclass(slots=True)
class CallerChange:
    """A caller with different decisions in the two rule sets. tier: its slug; empty = none."""

    caller: str
    tier: str = ""
    #: Requests that are newly rejected, and no longer rejected.
    newly: int = 0
    no_longer: int = 0
    #: The time of the first newly rejected request, and the rule that rejected it; `None` = there is none.
    first_us: int | None = None
    rule: str = ""


@dataclass(slots=True)
class Changes:
    """All changes. by: the rows of each table by their names; those of hours are "2026-11-22 18:00", in UTC.

    callers: number of different ones. top: callers that are newly rejected, those with most such requests first.
    """

    total: Change
    callers: int
    by: dict[Subject, dict[str, Change]]
    top: list[CallerChange]

    @property
    def share_of_requests(self) -> float:
        """The share of requests that are newly rejected, from 0 to 1."""
        return self.total.newly / self.total.requests if self.total.requests else 0.0

    @property
    def share_of_callers(self) -> float:
        """The share of callers with a request that is newly rejected, from 0 to 1."""
        return self.total.callers_newly / self.callers if self.callers else 0.0


class OutcomeCounts:
    """Counts outcomes of requests under two rule sets; under one, if both outcomes are the same object."""

    def __init__(self) -> None:
        #: By view, hour since the Unix epoch, and both outcomes. Grows with kinds of requests, not with requests.
        self.counts: dict[tuple[str, int, ReplayOutcome, ReplayOutcome], int] = {}
        self.callers = set[str]()
        self._changed: dict[str, CallerChange] = {}
        self._sets: defaultdict[tuple[Subject | None, str, bool], set[str]] = defaultdict(set)

    def add(self, time_us: int, view: str, caller: str, before: ReplayOutcome, after: ReplayOutcome) -> None:
        """Count a request."""
        key = view, time_us // HOUR_US, before, after
        counts = self.counts
        counts[key] = counts.get(key, 0) + 1
        if before is not after and before.rejected is not after.rejected:
            self._note(time_us, view, caller, before, after)

    def _note(self, time_us: int, view: str, caller: str, before: ReplayOutcome, after: ReplayOutcome) -> None:
        newly, tier = after.rejected, "".join(_tiers(before.rules, after.rules))
        rejecting = [each.rule for each in (after if newly else before).rules if each.rejected and not each.shadow]
        rules = rejecting or ["(access list)"]
        self._sets[None, "", newly].add(caller)
        self._sets["view", view, newly].add(caller)
        self._sets["tier", tier, newly].add(caller)
        self._sets["hour", hour_name(time_us // HOUR_US), newly].add(caller)
        for rule in rules:
            self._sets["rule", rule, newly].add(caller)
        changed = self._changed.get(caller) or self._changed.setdefault(caller, CallerChange(caller))
        changed.tier = tier
        changed.newly += newly
        changed.no_longer += not newly
        if newly and changed.first_us is None:
            changed.first_us, changed.rule = time_us, ", ".join(rules)

    def tiers_by_rule(self) -> Mapping[str, Collection[str]]:
        """Return the tiers of the callers that each rule of the second rule set has decided on, by its slug."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for outcome in {after for *_key, after in self.counts}:
            for each in outcome.rules:
                found[each.rule].add(each.tier)
        return found

    def changes(self, most: int = 20) -> Changes:
        """Return the changes. most: maximum number of callers in its list."""
        total = Change()
        by: dict[Subject, dict[str, Change]] = {"rule": {}, "tier": {}, "view": {}, "hour": {}}
        for (view, hour, before, after), number in self.counts.items():
            change = number, before.rejected, after.rejected, after.would_reject
            total.add(*change)
            by["view"].setdefault(view, Change()).add(*change)
            by["hour"].setdefault(hour_name(hour), Change()).add(*change)
            for tier in _tiers(before.rules, after.rules):
                by["tier"].setdefault(tier, Change()).add(*change)
            first, second = ({each.rule: each for each in outcome.rules} for outcome in (before, after))
            for name in {**first, **second}:
                one, other = first.get(name), second.get(name)
                shadow = other is not None and other.shadow and other.rejected
                by["rule"].setdefault(name, Change()).add(number, _rejects(one), _rejects(other), shadow)
        for (subject, name, is_newly), callers in self._sets.items():
            row = total if subject is None else by[subject].setdefault(name, Change())
            if is_newly:
                row.callers_newly = len(callers)
            else:
                row.callers_no_longer = len(callers)
        by["hour"] = dict(sorted(by["hour"].items()))
        top = sorted(
            (each for each in self._changed.values() if each.newly), key=lambda each: (-each.newly, each.caller)
        )
        callers = self.callers - ({UNKNOWN} - self._changed.keys())
        return Changes(total, len(callers), by, top[:most])


def hour_name(hour: int) -> str:
    """Return an hour since the Unix epoch as "2026-11-22 18:00"."""
    return f"{datetime.fromtimestamp(hour * 3_600, UTC):%Y-%m-%d %H:%M}"


def _rejects(outcome: RuleOutcome | None) -> bool:
    return outcome is not None and outcome.rejected and not outcome.shadow


def _tiers(before: Iterable[RuleOutcome], after: Iterable[RuleOutcome]) -> list[str]:
    """Return the tier of the caller; the last one, if an entry point decided before authentication."""
    return list(dict.fromkeys([each.tier for each in after] or [each.tier for each in before]))[-1:]
