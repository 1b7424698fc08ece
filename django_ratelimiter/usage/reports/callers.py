"""The known usage of a caller, by day: from top partitions and samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple

from django.db.models import Case, IntegerField, Sum, When
from django.utils import timezone
from django.utils.translation import gettext as _

from ...engine.base import Alias
from ...models import TopPartition, UsageSample
from ..times import Granularity, aware, buckets, floor, now, stored
from .report import TopPartitionRow
from .totals import about

DAYS: Final = 30


class Day(NamedTuple):
    """Known requests of the caller that one rule matched on one day."""

    date: date
    rule: str
    requests: int | None  # `None` = few: an estimate below 100 is no figure
    allowed: int | None  # `None` = few, or not known
    rejected: int | None  # `None` = few, or not known
    known_from: str  # top (among the top 100 of a rule in an hour) or sample
    estimated: bool = False  # whether the figures are estimates from a sample of requests; else they are exact

    @property
    def in_words(self) -> dict[str, str | None]:
        """Return the requests and the rejected ones as text; `None` = not known."""
        rejected = None if self.known_from == "sample" else about(self.rejected, is_estimate=self.estimated)
        return {"requests": about(self.requests, is_estimate=self.estimated), "rejected": rejected}


class Usage(NamedTuple):
    """The last 30 days, as far as they are known."""

    since: date
    until: date
    complete: bool  # always false: most requests are counted by rule and tier only
    explanation: str
    days: Sequence[Day]


def usage_of(digests: Mapping[str, str]) -> Usage:
    """Return the known usage of the last 30 days. digests: of the caller, by rule.

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
        if (day.requests or 0) > (other.requests or 0):
            days_by_rule[day.date, day.rule] = day
    explanation = _(
        "Requests are counted by rule and tier. They are counted by caller only in hours in which the caller was among "
        "the top callers of a rule (estimated if there were many requests), and for callers in the sample."
    )
    found = sorted(days_by_rule.values(), key=lambda day: (day.date, day.rule))
    return Usage(first, today, False, explanation, found)


def _days_of_top_partitions(digests: Mapping[str, str], start: datetime, zone: tzinfo) -> Iterator[Day]:
    # With a list of days: so all columns of the unique index are given, and no other caller's rows are read.
    starts = [stored(each) for each in buckets(aware(start), now(), Granularity.DAY, zone)]
    rows = TopPartition.objects.filter(
        granularity=TopPartition.Granularity.DAY, start__in=starts,
        rule_slug__in=list(digests), partition__in=set(digests.values()),
    )  # fmt: skip
    for row in rows.iterator():
        if digests[row.rule_slug] == row.partition:
            figures = TopPartitionRow(Alias.of(row.partition, ""), row.allowed, row.rejected, row.estimated).figures
            counts = figures["requests"], figures["allowed"], figures["rejected"]
            yield Day(aware(row.start).astimezone(zone).date(), row.rule_slug, *counts, "top", row.estimated)


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
