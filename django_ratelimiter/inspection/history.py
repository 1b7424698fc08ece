"""The known usage of a caller, by day: from top partitions and samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple

from django.db.models import Case, IntegerField, Sum, When
from django.utils import timezone

from ..models import TopPartition, UsageSample
from ..usage.times import Granularity, aware, buckets, floor, now, stored

DAYS: Final = 30


class Day(NamedTuple):
    """Requests of one day that matched one rule. allowed, rejected: None = not known. known_from: top or sample."""

    date: date
    rule: str
    requests: int
    allowed: int | None
    rejected: int | None
    known_from: str


def days(digests: Mapping[str, str]) -> tuple[date, date, list[Day]]:
    """Return the first and the last of the last 30 days, and the known usage. digests: of the caller, by rule.

    Two queries. Neither top partitions, which cover some hours of a day, nor samples are complete: if both have
    a day, the one with more requests is used.
    """
    zone = timezone.get_default_timezone()
    today = now().astimezone(zone).date()
    first = today - timedelta(days=DAYS - 1)
    start = stored(floor(datetime.combine(first, time(12), zone), Granularity.DAY, zone))
    days_by_rule: dict[tuple[date, str], Day] = {}
    for day in (*_days_of_top_partitions(digests, start, zone), *_days_of_samples(digests, start, zone)):
        other = days_by_rule.setdefault((day.date, day.rule), day)
        if day.requests > other.requests:
            days_by_rule[day.date, day.rule] = day
    return first, today, sorted(days_by_rule.values(), key=lambda day: (day.date, day.rule))


def _days_of_top_partitions(digests: Mapping[str, str], start: datetime, zone: tzinfo) -> Iterator[Day]:
    # With a list of days: so all columns of the unique index are given, and no other caller's rows are read.
    starts = [stored(each) for each in buckets(aware(start), now(), Granularity.DAY, zone)]
    rows = TopPartition.objects.filter(
        granularity=TopPartition.Granularity.DAY, start__in=starts,
        rule_slug__in=list(digests), partition__in=set(digests.values()),
    )  # fmt: skip
    for row in rows.iterator():
        if digests[row.rule_slug] == row.partition:
            on = aware(row.start).astimezone(zone).date()
            yield Day(on, row.rule_slug, row.allowed + row.rejected, row.allowed, row.rejected, "top")


def _days_of_samples(digests: Mapping[str, str], start: datetime, zone: tzinfo) -> Iterator[Day]:
    # Days are compared with their starts: MySQL and MariaDB have no time zones unless an operator has loaded them.
    starts = list(buckets(aware(start), now(), Granularity.DAY, zone))
    latest_first = [When(minute__gte=stored(each), then=number) for number, each in reversed(list(enumerate(starts)))]
    # Uses the index on these two; rules are selected here, because a database might prefer them to the index.
    rows = (
        UsageSample.objects.filter(partition_hash__in=set(digests.values()), minute__gte=start)
        .values("rule_slug", "partition_hash", day=Case(*latest_first, output_field=IntegerField()))
        .annotate(sum=Sum("count"))
        .order_by()
    )
    for row in rows.iterator():
        if digests.get(row["rule_slug"]) == row["partition_hash"]:
            on = starts[row["day"]].astimezone(zone).date()
            yield Day(on, row["rule_slug"], row["sum"], None, None, "sample")
