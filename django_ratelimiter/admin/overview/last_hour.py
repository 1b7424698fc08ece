"""Rejections in the last hour: by rule and minute, and by caller. The number of queries is fixed."""

from __future__ import annotations

from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final, NamedTuple

from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from ...engine.base import Alias
from ...models import TopPartition, UsageBucket
from ...usage.reports.coverage import HOUR, BucketRange, Period
from ...usage.reports.report import SUMS_OF_CALLERS, TopPartitionRow, few_last
from ...usage.reports.totals import SUMS, Figures, by_start, last
from ...usage.times import Granularity, aware, floor, stored

MINUTES: Final = 60
MAX_RULES: Final = 8
MAX_CALLERS: Final = 8


class RejectingRule(NamedTuple):
    """What one rule decided in the hour. by_minute: requests that it rejected, or would have, in each minute."""

    slug: str
    figures: Figures
    by_minute: list[int]


class LastHour(NamedTuple):
    """The hour before the start of the current minute.

    by_minute, figures: of all rules, each request once. rules: those with most rejected requests.
    """

    period: Period
    by_minute: list[int]
    figures: Figures
    rules: list[RejectingRule]


class RejectedCaller(NamedTuple):
    """One of the callers with most rejected requests under a rule. partition: its digest. Figures are texts."""

    rule_slug: str
    partition: Alias
    allowed: str
    rejected: str


def read_last_hour() -> LastHour:
    """Read the minutes of the last hour. Three queries."""
    period = last(HOUR)
    within = BucketRange(Granularity.MINUTE, *period).condition
    together, by_minute = Figures(), [0] * MINUTES
    for start, figures in by_start(within).items():
        together += figures
        by_minute[_minute(start, period)] += figures.rejected
    return LastHour(period, by_minute, together, _rules(UsageBucket.objects.order_by().filter(within), period))


def read_rejected_callers() -> list[RejectedCaller]:
    """Return the callers with most rejected requests in this hour and the one before, as far as known. One query."""
    start = floor(last(HOUR).start, Granularity.HOUR, timezone.get_default_timezone())
    rows: QuerySet[Any, Any] = TopPartition.objects.order_by().filter(
        granularity=Granularity.HOUR, start__gte=stored(start), rejected__gt=0
    )
    sums = rows.values_list("rule_slug", "partition").annotate(**SUMS_OF_CALLERS)
    found = sums.order_by(few_last("sum_rejected"), "-sum_rejected", "rule_slug", "partition")[:MAX_CALLERS]
    top = [(slug, TopPartitionRow.of(tuple(row))) for slug, *row in found]
    words = itemgetter("allowed", "rejected")
    return [RejectedCaller(slug, row.partition, *words(row.in_words())) for slug, row in top]


def _rules(rows: QuerySet[UsageBucket], period: Period) -> list[RejectingRule]:
    """Return the rules with most rejected requests. Two queries."""
    rejecting = rows.filter(Q(rejected__gt=0) | Q(shadow_rejected__gt=0)).values_list("rule_slug")
    ranked = rejecting.annotate(sum_rejected=Sum("rejected"), sum_shadow=Sum("shadow_rejected"))
    slugs = [slug for slug, *_ in ranked.order_by("-sum_rejected", "-sum_shadow", "rule_slug")[:MAX_RULES]]
    found = {slug: RejectingRule(slug, Figures(), [0] * MINUTES) for slug in slugs}
    per_minute = rows.filter(rule_slug__in=slugs).values_list("rule_slug", "start")
    for slug, start, *sums in per_minute.annotate(**SUMS):
        rule, figures = found[slug], Figures(*sums)
        rule.by_minute[_minute(start, period)] += figures.rejected + figures.shadow_rejected
        found[slug] = rule._replace(figures=rule.figures + figures)
    return list(found.values())


def _minute(start: datetime, period: Period) -> int:
    """Return the index of this minute in the period."""
    return min(max((aware(start) - period.start) // timedelta(minutes=1), 0), MINUTES - 1)
