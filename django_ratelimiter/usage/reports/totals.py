"""Totals of usage, and time series. The number of queries does not depend on the number of rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from django.db import connections
from django.db.models import IntegerField, Max, Q, QuerySet, Sum, Value
from django.utils import timezone

from ...models import UsageBatch, UsageBucket
from ..times import Granularity, aware, buckets, floor, now
from .coverage import DAY, GRANULARITIES, HOUR, BucketRange, Coverage, Period, read_coverage

__all__ = ["DAY", "HOUR", "Period"]


def last(length: timedelta) -> Period:
    """Return the period of this length up to the start of the running minute, which is not yet collected."""
    end = floor(now(), Granularity.MINUTE, timezone.get_current_timezone())
    return Period(end - length, end)


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of requests. In a sum of several rules, a request counts once for each rule that matched it.

    shadow_rejected: would have been rejected if the rule were enforced. soft_exceeded is a part of allowed.
    degraded: a part of all, decided by a process without Redis.
    """

    allowed: int = 0
    rejected: int = 0
    shadow_rejected: int = 0
    soft_exceeded: int = 0
    degraded: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.allowed + other.allowed,
            self.rejected + other.rejected,
            self.shadow_rejected + other.shadow_rejected,
            self.soft_exceeded + other.soft_exceeded,
            self.degraded + other.degraded,
        )

    @property
    def requests(self) -> int:
        """Return the number of requests that the rule matched."""
        return self.allowed + self.rejected + self.shadow_rejected

    @property
    def rejection_rate(self) -> float | None:
        """Return the rejected share, from 0 to 1; `None` without requests."""
        return self.rejected / self.requests if self.requests else None


#: The sums of a query, in the order of Figures.
SUMS: Final = {f"sum_{field.name}": Sum(field.name) for field in fields(Figures)}


class Total(NamedTuple):
    """The figures of one rule and tier. tier_slug "" = callers without a tier.

    most_partitions: the highest number of different partitions in one of the requested buckets; `None` = none
    of these has a number.
    """

    rule_slug: str
    tier_slug: str
    figures: Figures
    most_partitions: int | None = None


class Point(NamedTuple):
    """The figures of one bucket of a series, from `start` to `end` in UTC; the first and last may be shorter."""

    start: datetime
    end: datetime
    figures: Figures


class Freshness(NamedTuple):
    """The age of the figures; `None` = there are none.

    collected_at: when counts were last added, if within the last days. latest: the last minute with usage.
    """

    collected_at: datetime | None
    latest: datetime | None


def totals(
    period: Period,
    rule: str | None = None,
    tier: str | None = None,
    coverage: Coverage | None = None,
    partitions_by: Granularity | None = None,
) -> list[Total]:
    """Return the sums of each rule and tier with usage in the period, by their slugs.

    rule, tier: only this one; `None` = any. coverage: `None` = read it here. If only hours or days are left, the
    period is extended to whole ones. partitions_by: the granularity whose numbers of partitions are included, if its
    buckets are read; `None` = none.
    """
    coverage = coverage or read_coverage()
    ranges = coverage.bucket_ranges(coverage.widen(period))
    # SQLite reads one range in the order of its index, but must sort several; PostgreSQL reads them faster together.
    is_sqlite = connections[UsageBucket.objects.db].vendor == "sqlite"
    most = Max("partitions", filter=Q(granularity=partitions_by)) if partitions_by else Value(None, IntegerField())
    sums: dict[tuple[str, str], tuple[Figures, list[int]]] = {}
    for together in [[each] for each in ranges] if is_sqlite else [ranges]:
        rows = _rows(together, rule, tier).values_list("rule_slug", "tier_slug").annotate(**SUMS, most=most)
        for slug, of_tier, *figures, partitions in rows.order_by("rule_slug", "tier_slug"):
            known, counts = sums.get((slug, of_tier), (Figures(), []))
            sums[slug, of_tier] = known + Figures(*figures), [*counts, *([] if partitions is None else [partitions])]
    return [Total(*key, figures, max(counts, default=None)) for key, (figures, counts) in sorted(sums.items())]


def series(
    period: Period,
    rule: str | None = None,
    tier: str | None = None,
    coverage: Coverage | None = None,
    granularity: Granularity | None = None,
) -> list[Point]:
    """Return the sums in each bucket of the period, in the current time zone; see also `totals`.

    granularity: `None` = one that suits the period. If it is not left in the database, the buckets are wider, never
    empty: `coverage.granularity(period, granularity)` returns which, and each point has its end.
    If the buckets that are left do not fit the current time zone, the project's is used: hours and days are stored
    in that.
    """
    coverage = coverage or read_coverage()
    period = coverage.widen(period)
    starts, widest = _starts(period, coverage, coverage.granularity(period, granularity))
    # Not in SQL: a database would merge the hour that comes twice in autumn, and SQLite would call Python for every
    # row, not only for every start.
    sums = [Figures()] * len(starts)
    for each in coverage.bucket_ranges(period, widest):  # one by one, SQLite reads each in the order of its index
        rows = _rows([each], rule, tier).values_list("start").annotate(**SUMS).order_by("start")
        for start, *figures in rows:
            sums[bisect_right(starts, aware(start)) - 1] += Figures(*figures)
    ends = [*starts[1:], period.end]
    return [
        Point(max(start, period.start), min(end, period.end), each)
        for start, end, each in zip(starts, ends, sums, strict=True)
    ]


def freshness() -> Freshness:
    """Return when usage was last collected, and the last minute with usage. Two queries."""
    collected_at = UsageBatch.objects.aggregate(at=Max("collected_at"))["at"]
    latest = UsageBucket.objects.filter(granularity=Granularity.MINUTE).aggregate(at=Max("start"))["at"]
    return Freshness(collected_at and aware(collected_at), latest and aware(latest))


def _starts(period: Period, coverage: Coverage, granularity: Granularity) -> tuple[list[datetime], Granularity]:
    """Return the starts of a series' buckets, and the widest granularity whose buckets each fit in one of them."""
    project = timezone.get_default_timezone()
    starts = list(buckets(*period, granularity, timezone.get_current_timezone()))
    fitting = [each for each in GRANULARITIES if all(floor(start, each, project) == start for start in starts)]
    widest = min(fitting[-1], granularity, key=GRANULARITIES.index)
    if GRANULARITIES.index(widest) < GRANULARITIES.index(coverage.finest(period.start)):
        return list(buckets(*period, granularity, project)), granularity
    return starts, widest


def _rows(bucket_ranges: Iterable[BucketRange], rule: str | None, tier: str | None) -> QuerySet[UsageBucket]:
    wanted = {"rule_slug": rule, "tier_slug": tier}
    rows = UsageBucket.objects.filter(**{name: slug for name, slug in wanted.items() if slug is not None})
    return rows.filter(reduce(or_, (each.condition for each in bucket_ranges), Q(pk__in=[])))
