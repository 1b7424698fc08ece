"""Recorded samples as the traffic of a rule: requests of one caller in sixteen, counted per minute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, cached_property
from itertools import groupby, starmap
from operator import itemgetter
from typing import Any, Final

from django.db.models import Q, QuerySet, Sum
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ..engine.base import Alias
from ..models import TierAssignment, UsageBucket, UsageSample
from ..rules.formatting import units
from ..rules.records import LimitRecord, RuleRecord, TierRecord, multiply_limit
from ..rules.tiers import Entitlement
from ..usage.reports.coverage import DAY, Period
from ..usage.reports.report import Report
from ..usage.reports.totals import Figures, last
from ..usage.times import Granularity, aware, midnight, now, stored
from .answer import Blind, RuleForecast, blind_by_nature, unseen_tiers
from .code import costs_of_scope
from .evaluate import SAMPLED_ONE_IN, Evaluator, Kind, Requests, Tally, evaluators

YESTERDAY: Final = "yesterday"
WEEK: Final = "7d"

#: The days that can be selected. Outside of these, times in some zones cannot be represented.
FIRST_DAY: Final = date(1970, 1, 2)
LAST_DAY: Final = date(2999, 12, 31)

MINUTE_US: Final = 60_000_000

#: Number of samples that are fetched at once.
MAX_FETCHED: Final = 10_000

#: A sample that represents less than this share of the recorded requests does not show enough.
COMPLETE_ENOUGH: Final = 0.8

#: The quotas beside those of the form, as multiples of them.
MULTIPLES: Final = tuple(map(Decimal, ("0.2", "0.5", "1", "2", "5")))

#: The fields that determine which requests a rule matched, and what distinguished callers.
_RECORDED_BY: Final = ("methods", "path", "path_kind", "view_name", "scope", "partition_by", "missing_partition")


def read_period(text: str) -> tuple[str, Period]:
    """Return the name and the period of a text: "yesterday", "7d" or "2026-11-22". Raises ValueError for others."""
    if text == WEEK:
        return _("the last 7 days"), last(7 * DAY)
    try:
        day = _today() - DAY if text == YESTERDAY else date.fromisoformat(text)
        if not FIRST_DAY <= day <= LAST_DAY:
            raise ValueError(day)
    except ValueError:
        error = _("%(text)r is not a period. Write yesterday, 7d, or a day such as 2026-11-22.") % {"text": text}
        raise ValueError(error) from None
    name = _("yesterday") if text == YESTERDAY else date_format(day)
    return name, Period(*(midnight(each).astimezone(UTC) for each in (day, day + DAY)))


def recent_periods() -> list[tuple[str, str]]:
    """Return the periods of which there are samples, each as text for `read_period`, and its name."""
    texts = [YESTERDAY, WEEK, *((_today() - days * DAY).isoformat() for days in range(2, 8))]
    return [(text, read_period(text)[0]) for text in texts]


def _today() -> date:
    return now().astimezone(timezone.get_current_timezone()).date()


class Samples:
    """The samples of one rule and period. They are read at their first use.

    before: the saved rule, which took the samples; `None` = it is judged alone, by the samples under its slug.
    """

    def __init__(self, before: RuleRecord | None, after: RuleRecord, period: Period) -> None:
        self.before, self.after, self.period = before, after, period
        counted_as = before or after
        self._slug, self.is_shared = counted_as.slug, counted_as.is_shared

    @cached_property
    def recorded(self) -> dict[str, Figures]:
        """The requests that the rule matched, by tier, with their outcomes."""
        found = Report(self.period, self._slug).totals
        by_tier = {each.tier_slug: each.figures for each in found if each.figures.requests}
        if self.is_shared:  # one counter, whatever the tier
            return {"": sum(by_tier.values(), Figures())} if by_tier else {}
        return by_tier

    def forecast(self, *, is_change: bool = True) -> RuleForecast:
        """Return what the changed rule would have done: requests came evenly in each minute, or all at its start."""
        tally = Tally(evaluators(self.before, self.after), scenarios=2)
        for who, *scenarios in self._callers():
            tally.add(who, scenarios)
        figures = self.recorded.values()
        return RuleForecast(
            self.after.slug,
            self.before,
            self.after,
            tally,
            sum(each.requests for each in figures),
            [*self._blind(tally)],
            1 if self.is_shared else SAMPLED_ONE_IN,
            [*self._notes(tally)],
            sum(each.rejected + each.shadow_rejected for each in figures),
            is_change=is_change,
        )

    def with_other_quotas(self) -> list[tuple[RuleRecord, int]]:
        """Return the changed rule with MULTIPLES of its quotas, and how many sampled callers each would reject.

        If all callers share one counter: how many requests.
        """
        rules = [replace(self.after, limits=_times(self.after.limits, multiple)) for multiple in MULTIPLES]
        rules = [rule for place, rule in enumerate(rules) if rule not in rules[:place]]
        found, judges = [0] * len(rules), [Evaluator(rule, 1) for rule in rules]
        for _who, spread, _at_once in self._callers():
            for place, judge in enumerate(judges):
                if self.is_shared:
                    found[place] += sum(judge.rejected(spread).values())
                elif judge.rejects(spread):
                    found[place] += 1
                else:
                    break  # with more, neither
        return [*zip(rules, found, strict=True)]

    def aliases(self, digests: Sequence[str]) -> Iterator[Alias]:
        """Yield the aliases of these sampled callers that can be read. One query."""
        rows = self._rows.filter(partition_hash__in=digests).exclude(tail="")
        yield from starmap(Alias.of, rows.order_by().values_list("partition_hash", "tail").distinct())

    @property
    def _rows(self) -> QuerySet[Any, Any]:
        return UsageSample.objects.filter(self._within("minute"), rule_slug=self._slug)

    def _within(self, column: str) -> Q:
        start, end = map(stored, self.period)
        return Q(**{f"{column}__gte": start, f"{column}__lt": end})

    def _callers(self) -> Iterator[tuple[str, Requests, Requests]]:
        """Yield the callers of each tier, all of a shared counter as one. One query.

        Each is a digest with the requests: spread over each minute, and all at its start.
        """
        cost, kinds = next(iter(self._costs[0]), None), dict[str, tuple[Kind]]()
        start_of = cache(lambda minute: int(aware(minute).timestamp()) * 1_000_000)
        for who, tier, rows in self._shared_minutes() if self.is_shared else self._minutes():
            if tier not in kinds:
                entitled = Entitlement(TierRecord(tier, tier, 0, "none") if tier else None)
                kinds[tier] = (Kind((entitled, entitled), cost),)
            minutes = [(start_of(minute), count) for minute, count in rows]
            pairs = [pair for start, count in minutes for pair in _spread(start, count)]
            spread, at_once = (
                Requests([at for at, _count in each], kinds[tier], [count for _at, count in each])
                for each in (pairs, minutes)
            )
            yield who, spread, at_once

    def _minutes(self) -> Iterator[tuple[str, str, Iterable[tuple[datetime, int]]]]:
        rows = self._rows.order_by("partition_hash", "tier_slug", "minute")
        rows = rows.values_list("partition_hash", "tier_slug", "minute", "count")
        for (who, tier), some in groupby(rows.iterator(MAX_FETCHED), itemgetter(0, 1)):
            yield who, tier, [row[2:] for row in some]

    def _shared_minutes(self) -> Iterator[tuple[str, str, Iterable[tuple[datetime, int]]]]:
        """Yield the minutes of a counter that callers share: these are counted, not sampled."""
        rows: QuerySet[Any, Any] = UsageBucket.objects.filter(
            self._within("start"), rule_slug=self._slug, granularity=Granularity.MINUTE
        ).order_by("start")
        summed = rows.values("start").annotate(requests=Sum(UsageBucket.REQUESTS))
        if found := [(start, max(int(requests), 0)) for start, requests in summed.values_list("start", "requests")]:
            yield "", "", found

    @cached_property
    def _costs(self) -> tuple[set[int | None], list[str]]:
        return costs_of_scope(self.after.scope)

    def _blind(self, tally: Tally) -> Iterator[Blind]:
        before, after, requests = self.before, self.after, sum(each.requests for each in self.recorded.values())
        why = ""
        if before is not None and before.sync_interval is not None:
            why = _(": the rule keeps fetched units (sync_interval_ms), and only requests that ask Redis are sampled")
        if not requests:
            yield Blind("unmatched", _("nothing is recorded in this time"))
        elif not tally.callers:
            text = _("none of the %s recorded requests is of a sampled caller; samples come a few minutes later")
            yield Blind("unmatched", text % units(requests) + why)
        if before is not None and any(getattr(before, name) != getattr(after, name) for name in _RECORDED_BY):
            yield Blind("others", _("what it applies to or counts by changes, and the saved rule took the samples"))
        if requests and not (self.is_shared or after.is_off):  # the requests of unlimited tiers are not recorded
            yield from unseen_tiers(before, after, self.recorded)
        if any(each.limit.holds_leases for several in after.limits.values() for each in several):
            yield Blind("duration", _("requests in progress at once are not recorded"))
        fixed, computed = self._costs
        if len(fixed) > 1:
            computed = [*computed, _("different costs of one scope")]
        yield from blind_by_nature(after, computed, has_outcomes=False)
        stands_for = tally.requests * (1 if self.is_shared else SAMPLED_ONE_IN)
        if tally.callers and stands_for < COMPLETE_ENOUGH * requests:
            text = _("the sample stands for only %d %% of the requests that were counted")
            yield Blind("incomplete", text % round(100 * stands_for / requests) + why)

    def _notes(self, tally: Tally) -> Iterator[str]:
        if not tally.callers:
            return
        text = _("Requests are counted per minute: the estimate spreads them evenly, the worst case has all at once.")
        if not self.is_shared:
            text = _("Figures are ranges, because only one caller in %s is sampled.") % SAMPLED_ONE_IN + f" {text}"
        yield text
        if not self.is_shared and TierAssignment.objects.exclude(multiplier=1).exists():
            yield _("Some callers have a multiplier, which is not recorded: the limits of their tier are used.")


def _times(limits: Mapping[str | None, Sequence[LimitRecord]], multiple: Decimal) -> dict[str | None, Any]:
    return {
        tier: tuple(each._replace(limit=multiply_limit(each.limit, multiple)) for each in several)
        for tier, several in limits.items()
    }


def _spread(start: int, count: int) -> Sequence[tuple[int, int]]:
    """Return times within a minute, at most one a second, each with its share of so many requests."""
    parts = min(count, 60)
    return [
        (start + MINUTE_US * part // parts, count * (part + 1) // parts - count * part // parts)
        for part in range(parts)
    ]
