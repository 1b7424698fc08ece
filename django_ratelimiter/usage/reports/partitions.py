"""Different partitions of the rules: their number, and the top ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import F, Max, Q, QuerySet, Sum
from django.utils import timezone

from ...models import TopPartition, UsageBucket
from ..times import Granularity, aware, buckets, stored
from .coverage import DAY, NEVER, Coverage, Period, next_start, read_coverage
from .totals import Total

#: The number of top partitions that are shown.
MAX_PARTITIONS: Final = 25


class TopPartitionRow(NamedTuple):
    """One of the top partitions, with its requests; estimated from a sample if there are many."""

    partition: str
    allowed: int
    rejected: int


class PartitionCount(NamedTuple):
    """The number of different partitions in one hour or day, to about 1 %.

    `None` = not known: there was no request, or partitions were not counted.
    """

    period: Period
    partitions: int | None


def counted_by(period: Period, coverage: Coverage) -> Granularity:
    """Return hours or days: different partitions are only counted for these."""
    is_short = period.end - period.start <= 8 * DAY
    return Granularity.HOUR if is_short and coverage.finest(period.start) is not Granularity.DAY else Granularity.DAY


def most_partitions(
    totals: Iterable[Total],
    period: Period,
    granularity: Granularity,
    rule: str | None = None,
    tier: str | None = None,
    coverage: Coverage | None = None,
) -> dict[tuple[str, str], int]:
    """Return the highest count of an hour or day that overlaps the period, by the slugs of rule and tier.

    Only the known ones. totals: of this period, with these `partitions_by`: hours or days that they
    include are not read again.
    """
    coverage = coverage or read_coverage()
    most = {total[:2]: total.most_partitions for total in totals if total.most_partitions is not None}
    read = [each for each in coverage.bucket_ranges(coverage.widen(period)) if each.granularity is granularity]
    starts = [
        start
        for start in buckets(*period, granularity, timezone.get_default_timezone())
        if not any(each.start <= start < each.end for each in read)
    ]
    rows = _counted(starts, granularity, rule, tier).values_list("rule_slug", "tier_slug")
    for slug, of_tier, partitions in rows.annotate(most=Max("partitions")).order_by():
        most[slug, of_tier] = max(partitions, most.get((slug, of_tier), 0))
    return most


def partition_counts(
    period: Period, granularity: Granularity, rule: str, tier: str | None = None
) -> list[PartitionCount]:
    """Return the count of a rule for each hour or day that overlaps the period, in the project's time zone.

    A caller whose tier changes in between is counted for both tiers.
    """
    starts = [*buckets(*period, granularity, timezone.get_default_timezone())]
    rows = _counted(starts, granularity, rule, tier).values_list("start")
    counts = {aware(start): partitions for start, partitions in rows.annotate(sum=Sum("partitions")).order_by("start")}
    return [PartitionCount(Period(start, next_start(start, granularity)), counts.get(start)) for start in starts]


def top_partitions(
    period: Period, rule: str, *, by_rejected: bool = False, coverage: Coverage | None = None
) -> list[TopPartitionRow]:
    """Return the top partitions of a rule in the hours that overlap the period, the one with most requests first.

    by_rejected: order by rejected requests, and leave out partitions without any.
    """
    sums = _sums(period, rule, coverage or read_coverage())
    if by_rejected:
        sums = sums.filter(sum_rejected__gt=0).order_by("-sum_rejected", "-sum_allowed", "partition")
    else:
        sums = sums.order_by(-(F("sum_allowed") + F("sum_rejected")), "-sum_rejected", "partition")
    return [TopPartitionRow(*row) for row in sums[:MAX_PARTITIONS]]


def one_partition(
    period: Period, rule: str, partition: str, *, coverage: Coverage | None = None
) -> TopPartitionRow | None:
    """Return one partition, from the hours in which it was a top partition; `None` = it was in none."""
    sums = _sums(period, rule, coverage or read_coverage()).filter(partition=partition)
    return next((TopPartitionRow(*row) for row in sums), None)


def hours(period: Period, coverage: Coverage) -> Period:
    """Return the period in whole hours, or days if no hours are left: minutes have no top partitions."""
    return replace(coverage, complete_from={**coverage.complete_from, Granularity.MINUTE: NEVER}).widen(period)


def _sums(period: Period, rule: str, coverage: Coverage) -> QuerySet[Any, Any]:
    bucket_ranges = coverage.bucket_ranges(hours(period, coverage))
    condition = reduce(or_, (each.condition for each in bucket_ranges), Q(pk__in=[]))
    rows = TopPartition.objects.filter(condition, rule_slug=rule).values_list("partition")
    return rows.annotate(sum_allowed=Sum("allowed"), sum_rejected=Sum("rejected"))


def _counted(
    starts: Sequence[datetime], granularity: Granularity, rule: str | None, tier: str | None
) -> QuerySet[UsageBucket]:
    """Return the buckets that begin at these times and have a count."""
    # With a list: for a range, PostgreSQL expects as many hours as minutes, and would read the whole table.
    named = {"start__in": [stored(start) for start in starts], "partitions__isnull": False}
    wanted = {"rule_slug": rule, "tier_slug": tier}
    rows = UsageBucket.objects.filter(granularity=granularity, **named)
    return rows.filter(**{name: slug for name, slug in wanted.items() if slug is not None})
