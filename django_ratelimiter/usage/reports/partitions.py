"""How many different partitions the rules met, and which were the heaviest."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import F, Max, Q, QuerySet, Sum
from django.utils import timezone

from ...models import TopPartition, UsageBucket
from ..times import Step, aware, buckets, floor, stored
from . import coverage
from .coverage import DAY, NEVER, Kept, Period

#: How many of the heaviest partitions are told.
MOST: Final = 25


class Heavy(NamedTuple):
    """One of the heaviest partitions. Requests, estimated from a sample where there were many."""

    partition: str
    allowed: int
    denied: int


class Moment(NamedTuple):
    """How many different partitions were met in the hour or the day that this period is; to about 1 %.

    `None` = not known: nothing was met, or it was not counted.
    """

    period: Period
    partitions: int | None


def unit(period: Period, kept: Kept) -> Step:
    """Whether different partitions are told by the hour or by the day: they are counted in no other span."""
    is_short = period.end - period.start <= 8 * DAY
    return Step.HOUR if is_short and kept.finest(period.start) is not Step.DAY else Step.DAY


def most(period: Period, step: Step, rule: str | None = None, tier: str | None = None) -> dict[tuple[str, str], int]:
    """The most that one hour or day of the period met, by the slugs of rule and tier. What is not known is left out."""
    rows = _counted(period, step, rule, tier).values_list("rule_slug", "tier_slug").annotate(most=Max("partitions"))
    return {(slug, of_tier): partitions for slug, of_tier, partitions in rows.order_by("rule_slug", "tier_slug")}


def met(period: Period, step: Step, rule: str, tier: str | None = None) -> list[Moment]:
    """How many a rule met in each hour or day that the period touches, by the project's clock.

    Who changed the tier in between is counted for both.
    """
    rows = _counted(period, step, rule, tier).values_list("start").annotate(met=Sum("partitions")).order_by("start")
    known = {aware(start): partitions for start, partitions in rows}
    starts = buckets(*period, step, timezone.get_default_timezone())
    return [Moment(Period(start, coverage.following(start, step)), known.get(start)) for start in starts]


def heaviest(period: Period, rule: str, *, by_denied: bool = False, kept: Kept | None = None) -> list[Heavy]:
    """The heaviest partitions of a rule in the hours that the period touches, the heaviest first.

    by_denied: by the requests that were refused, and only those with any.
    """
    sums = _weighed(period, rule, kept or coverage.kept())
    if by_denied:
        sums = sums.filter(sum_denied__gt=0).order_by("-sum_denied", "-sum_allowed", "partition")
    else:
        sums = sums.order_by(-(F("sum_allowed") + F("sum_denied")), "-sum_denied", "partition")
    return [Heavy(*row) for row in sums.values_list("partition", "sum_allowed", "sum_denied")[:MOST]]


def one(period: Period, rule: str, partition: str, *, kept: Kept | None = None) -> Heavy | None:
    """One partition, in those of these hours in which it was among the heaviest; `None` = it was in none."""
    sums = _weighed(period, rule, kept or coverage.kept()).filter(partition=partition)
    return next((Heavy(*row) for row in sums.values_list("partition", "sum_allowed", "sum_denied")), None)


def hours(period: Period, kept: Kept) -> Period:
    """The period in whole hours, or days where no hours are left: the heaviest are not known by the minute."""
    return replace(kept, whole={**kept.whole, Step.MINUTE: NEVER}).widened(period)


def _weighed(period: Period, rule: str, kept: Kept) -> QuerySet[Any, Any]:
    pieces = kept.pieces(hours(period, kept))
    found = reduce(or_, (piece.condition for piece in pieces), Q(pk__in=[]))
    sums = TopPartition.objects.filter(found, rule_slug=rule).values("partition")
    return sums.annotate(sum_allowed=Sum("allowed"), sum_denied=Sum("denied"))


def _counted(period: Period, step: Step, rule: str | None, tier: str | None) -> QuerySet[UsageBucket]:
    zone = timezone.get_default_timezone()
    rows = UsageBucket.objects.filter(granularity=step, start__lt=stored(period.end), partitions__isnull=False)
    if step is Step.HOUR:
        # By name: PostgreSQL expects as many hours as minutes in such a span, and would rather read the whole table.
        rows = rows.filter(start__in=[stored(start) for start in buckets(*period, step, zone)])
    else:
        rows = rows.filter(start__gte=stored(floor(period.start, step, zone)))
    wanted = {"rule_slug": rule, "tier_slug": tier}
    return rows.filter(**{name: slug for name, slug in wanted.items() if slug is not None})
