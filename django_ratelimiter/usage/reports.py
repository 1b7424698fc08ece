"""What people read about usage: totals, and how they ran over time. A fixed number of queries, whatever the size."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db.models import Max, QuerySet, Sum
from django.utils import timezone

from ..models import UsageBatch, UsageBucket
from .times import Step, aware, buckets, floor, now, stored

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

_SUMS: Final = {
    "sum_allowed": Sum("allowed"),
    "sum_denied": Sum("denied"),
    "sum_shadow_denied": Sum("shadow_denied"),
    "sum_soft_exceeded": Sum("soft_exceeded"),
}


class Period(NamedTuple):
    """From `start` up to, and without, `end`; both in UTC."""

    start: datetime
    end: datetime

    @property
    def step(self) -> Step:
        """How fine a series over this period is: some 370 buckets at most, up to a year."""
        length = self.end - self.start
        return Step.MINUTE if length <= 3 * HOUR else Step.HOUR if length <= 8 * DAY else Step.DAY


def last(length: timedelta) -> Period:
    """The period of this length up to the start of the running minute, which is not yet collected."""
    end = floor(now(), Step.MINUTE, timezone.get_current_timezone())
    return Period(end - length, end)


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts in requests. Of several rules together, a request counts once for each rule that it met.

    shadow_denied: would have been refused, were the rule enforced. soft_exceeded is a part of allowed.
    """

    allowed: int = 0
    denied: int = 0
    shadow_denied: int = 0
    soft_exceeded: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.allowed + other.allowed,
            self.denied + other.denied,
            self.shadow_denied + other.shadow_denied,
            self.soft_exceeded + other.soft_exceeded,
        )

    @property
    def requests(self) -> int:
        """All that met the rule."""
        return self.allowed + self.denied + self.shadow_denied

    @property
    def refusal_rate(self) -> float | None:
        """The share that was refused, from 0 to 1; `None` without requests."""
        return self.denied / self.requests if self.requests else None


class Total(NamedTuple):
    """The figures of one rule and tier. tier_slug "" = callers without a tier."""

    rule_slug: str
    tier_slug: str
    figures: Figures


class Point(NamedTuple):
    """The figures of one bucket of a series, from `start` up to `end` in UTC; the outer ones may be cut short."""

    start: datetime
    end: datetime
    figures: Figures


class Freshness(NamedTuple):
    """How recent the figures are; `None` = none at all.

    collected_at: when counts last came in, if within the last days. latest: the last minute with usage.
    """

    collected_at: datetime | None
    latest: datetime | None


def totals(period: Period) -> list[Total]:
    """The sums of each rule and tier with usage in the period, by their slugs. One query."""
    rows = _minutes(period).values_list("rule_slug", "tier_slug").annotate(**_SUMS).order_by("rule_slug", "tier_slug")
    return [Total(rule, tier, Figures(*figures)) for rule, tier, *figures in rows]


def series(period: Period) -> list[Point]:
    """The sums of all rules in each step of the period, by the clock of the current time zone. One query."""
    starts = list(buckets(period.start, period.end, period.step, timezone.get_current_timezone()))
    # Cut here and not in SQL: a database takes an hour that comes twice, in autumn, for one, and SQLite would call
    # back into Python for every row, not for every minute.
    minutes = _minutes(period).values_list("start").annotate(**_SUMS).order_by("start")
    sums = [Figures()] * len(starts)
    for minute, *figures in minutes.iterator():
        sums[bisect_right(starts, aware(minute)) - 1] += Figures(*figures)
    ends = [*starts[1:], period.end]
    return [
        Point(max(start, period.start), min(end, period.end), each)
        for start, end, each in zip(starts, ends, sums, strict=True)
    ]


def freshness() -> Freshness:
    """When usage was last collected, and until when there is any. Two queries."""
    collected_at = UsageBatch.objects.aggregate(at=Max("collected_at"))["at"]
    latest = UsageBucket.objects.filter(granularity=UsageBucket.Granularity.MINUTE).aggregate(at=Max("start"))["at"]
    return Freshness(collected_at and aware(collected_at), latest and aware(latest))


def _minutes(period: Period) -> QuerySet[UsageBucket]:
    return UsageBucket.objects.filter(
        granularity=UsageBucket.Granularity.MINUTE,
        start__gte=stored(period.start),
        start__lt=stored(period.end),
    )
