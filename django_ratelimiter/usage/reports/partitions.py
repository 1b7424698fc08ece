"""How many different partitions the rules met, and which were the heaviest."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import F, Max, Q, QuerySet, Sum
from django.utils import timezone

from ...models import TopPartition, UsageBucket
from ..times import Granularity, aware, buckets, floor, stored
from .coverage import DAY, NEVER, Coverage, Period, next_start, read_coverage

#: How many of the heaviest partitions are told.
MAX_PARTITIONS: Final = 25


class TopPartitionRow(NamedTuple):
    """One of the heaviest partitions. Requests, estimated from a sample where there were many."""

    partition: str
    allowed: int
    denied: int


class PartitionCount(NamedTuple):
    """How many different partitions were met in the hour or the day that this period is; to about 1 %.

    `None` = not known: nothing was met, or it was not counted.
    """

    period: Period
    partitions: int | None


def counted_by(period: Period, coverage: Coverage) -> Granularity:
    """Whether different partitions are told by the hour or by the day: they are counted in no other span."""
    is_short = period.end - period.start <= 8 * DAY
    return Granularity.HOUR if is_short and coverage.finest(period.start) is not Granularity.DAY else Granularity.DAY


def most_partitions(
    period: Period, granularity: Granularity, rule: str | None = None, tier: str | None = None
) -> dict[tuple[str, str], int]:
    """The most that one hour or day of the period met, by the slugs of rule and tier. What is not known is left out."""
    rows = (
        _counted(period, granularity, rule, tier).values_list("rule_slug", "tier_slug").annotate(most=Max("partitions"))
    )
    return {(slug, of_tier): partitions for slug, of_tier, partitions in rows.order_by("rule_slug", "tier_slug")}


def partition_counts(
    period: Period, granularity: Granularity, rule: str, tier: str | None = None
) -> list[PartitionCount]:
    """How many a rule met in each hour or day that the period touches, by the project's clock.

    Who changed the tier in between is counted for both.
    """
    rows = (
        _counted(period, granularity, rule, tier).values_list("start").annotate(sum=Sum("partitions")).order_by("start")
    )
    known = {aware(start): partitions for start, partitions in rows}
    starts = buckets(*period, granularity, timezone.get_default_timezone())
    return [PartitionCount(Period(start, next_start(start, granularity)), known.get(start)) for start in starts]


def top_partitions(
    period: Period, rule: str, *, by_denied: bool = False, coverage: Coverage | None = None
) -> list[TopPartitionRow]:
    """The heaviest partitions of a rule in the hours that the period touches, the heaviest first.

    by_denied: by the requests that were refused, and only those with any.
    """
    sums = _sums(period, rule, coverage or read_coverage())
    if by_denied:
        sums = sums.filter(sum_denied__gt=0).order_by("-sum_denied", "-sum_allowed", "partition")
    else:
        sums = sums.order_by(-(F("sum_allowed") + F("sum_denied")), "-sum_denied", "partition")
    return [
        TopPartitionRow(*row) for row in sums.values_list("partition", "sum_allowed", "sum_denied")[:MAX_PARTITIONS]
    ]


def one_partition(
    period: Period, rule: str, partition: str, *, coverage: Coverage | None = None
) -> TopPartitionRow | None:
    """One partition, in those of these hours in which it was among the heaviest; `None` = it was in none."""
    sums = _sums(period, rule, coverage or read_coverage()).filter(partition=partition)
    return next((TopPartitionRow(*row) for row in sums.values_list("partition", "sum_allowed", "sum_denied")), None)


def hours(period: Period, coverage: Coverage) -> Period:
    """The period in whole hours, or days where no hours are left: the heaviest are not known by the minute."""
    return replace(coverage, complete_from={**coverage.complete_from, Granularity.MINUTE: NEVER}).widen(period)


def _sums(period: Period, rule: str, coverage: Coverage) -> QuerySet[Any, Any]:
    bucket_ranges = coverage.bucket_ranges(hours(period, coverage))
    found = reduce(or_, (each.condition for each in bucket_ranges), Q(pk__in=[]))
    sums = TopPartition.objects.filter(found, rule_slug=rule).values("partition")
    return sums.annotate(sum_allowed=Sum("allowed"), sum_denied=Sum("denied"))


def _counted(period: Period, granularity: Granularity, rule: str | None, tier: str | None) -> QuerySet[UsageBucket]:
    zone = timezone.get_default_timezone()
    rows = UsageBucket.objects.filter(granularity=granularity, start__lt=stored(period.end), partitions__isnull=False)
    if granularity is Granularity.HOUR:
        # By name: PostgreSQL expects as many hours as minutes in such a span, and would rather read the whole table.
        rows = rows.filter(start__in=[stored(start) for start in buckets(*period, granularity, zone)])
    else:
        rows = rows.filter(start__gte=stored(floor(period.start, granularity, zone)))
    wanted = {"rule_slug": rule, "tier_slug": tier}
    return rows.filter(**{name: slug for name, slug in wanted.items() if slug is not None})
