"""The usage of all rules, or of one, in a period: totals, a time series, and callers; and of one caller, by day.

Each part is read when it is first used; the number of queries does not depend on the number of rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta, tzinfo
from functools import cached_property, reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import Case, Count, F, IntegerField, Max, Q, QuerySet, Sum, When
from django.utils import timezone
from django.utils.translation import gettext as _

from ...conf import aliases_of, caller_in, settings
from ...engine.base import Alias, tail_of
from ...models import CallerUsage, TopCaller, TopPartition, UsageBucket, UsageTotal
from ...values.digests import keyed_digest
from ...values.partitions import EXACT, encode_partition
from ..times import Granularity, aware, buckets, floor, now, stored
from .coverage import GRANULARITIES, NEVER, BucketRange, Coverage, Period, read_coverage
from .totals import LEAST_ESTIMATE, SUMS, SUMS_OF_REQUESTS, Figures, Point, Total, about, believable

#: The number of top partitions that are shown.
MAX_PARTITIONS: Final = 25
#: The days of a report about one caller.
DAYS: Final = 30

#: How many of the rows that are added up are estimates.
ESTIMATES: Final = Count("pk", filter=Q(estimated=True))


#: The figures of callers after their partitions, for `TopPartitionRow.of`.
SUMS_OF_CALLERS: Final = {
    "sum_allowed": Sum("allowed"), "sum_rejected": Sum("rejected"), "estimates": ESTIMATES, "any_tail": Max("tail")
}  # fmt: skip


def few_last(figure: str) -> Case:
    """Return what comes first in an order by this figure of callers, so that those with few come last."""
    few = {"estimates__gt": 0, f"{figure}__gt": 0, f"{figure}__lt": LEAST_ESTIMATE}
    return Case(When(**few, then=1), default=0)


class TopPartitionRow(NamedTuple):
    """One of the top partitions, with its requests.

    estimated: from a sample, because there were many; `believable` says which of its figures are more than few.
    share: of the requests of all callers, from 0 to 1; `None` = few, or there are none. requests_before: in the period
    before; `None` = few, or that was not counted completely, or was not asked for.
    """

    partition: Alias
    allowed: int
    rejected: int
    estimated: bool = False
    share: float | None = None
    requests_before: int | None = None

    @classmethod
    def of(cls, row: tuple[str, int, int, int, str]) -> TopPartitionRow:
        """Return a row of `SUMS_OF_CALLERS`, after its partition."""
        partition, allowed, rejected, estimates, tail = row
        return cls(Alias.of(partition, tail), int(allowed), int(rejected), estimates > 0)

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return self.allowed + self.rejected

    @property
    def figures(self) -> dict[str, int | None]:
        """Return the requests, allowed and rejected ones; `None` = few."""
        figures = {"requests": self.requests, "allowed": self.allowed, "rejected": self.rejected}
        return {name: believable(figure, is_estimate=self.estimated) for name, figure in figures.items()}

    def in_words(self) -> dict[str, str]:
        """Return the same as text."""
        return {name: about(figure, is_estimate=self.estimated) for name, figure in self.figures.items()}


class Report:
    """The usage of all rules, or of one, in a period; of all tiers, or of one.

    period: as requested, extended to whole hours or days if only these are left. rule, tier: slugs; `None` = all.
    by_rejected: the order of the top partitions. identity: the top partitions are the callers of this identity over all
    rules, not those of the rule. coverage: `None` = read it here.
    """

    def __init__(
        self,
        period: Period,
        rule: str | None = None,
        tier: str | None = None,
        *,
        by_rejected: bool = False,
        identity: str | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        self.rule, self.tier, self.by_rejected, self.identity = rule, tier, by_rejected, identity
        #: The names of partitions, for readers who may see them.
        self.names: Mapping[str, str] = {}
        self.coverage: Coverage = coverage or read_coverage()
        self.period: Period = self.coverage.widen(period)

    @property
    def granularity(self) -> Granularity:
        """Return the width of the buckets of `points`."""
        return self.coverage.granularity(self.period)

    @cached_property
    def totals(self) -> list[Total]:
        """The sums of each rule and tier with usage in the period, by their slugs."""
        ranges = self.coverage.bucket_ranges(self.period)
        # SQLite reads one range in the order of its index, but must sort several; PostgreSQL reads them faster at once.
        is_sqlite = connections[UsageBucket.objects.db].vendor == "sqlite"
        sums: dict[tuple[str, str], Figures] = {}
        for together in [[each] for each in ranges] if is_sqlite else [ranges]:
            rows = self._rows(together).values_list("rule_slug", "tier_slug").annotate(**SUMS)
            for slug, of_tier, *figures in rows.order_by("rule_slug", "tier_slug"):
                sums[slug, of_tier] = sums.get((slug, of_tier), Figures()) + Figures(*figures)
        return [Total(*key, figures) for key, figures in sorted(sums.items())]

    @cached_property
    def together(self) -> Figures:
        """The figures of all requests; if all are known over all rules, each counts once whatever rules matched it."""
        return self._once or sum((total.figures for total in self.totals), Figures())

    @property
    def counts_once(self) -> bool:
        """True if `together` counts a request once that several rules matched."""
        return self.rule is not None or self._once is not None

    @cached_property
    def _once(self) -> Figures | None:
        if self.rule is not None or self.tier is not None:
            return None
        ranges = self.coverage.bucket_ranges(self.period)
        totals = UsageTotal.objects.filter(_within(ranges))
        if self._rows(ranges).exclude(start__in=totals.values("start")).exists():
            return None  # a part has none, as of an engine that counts none
        once = Figures(*(int(each or 0) for each in totals.aggregate(**SUMS_OF_REQUESTS).values()))
        return None if any(each.figures.requests > once.requests for each in self.totals) else once

    @cached_property
    def before(self) -> Mapping[tuple[str, str], Figures] | None:
        """The figures of the period before, by rule and tier; `None` = it was not counted completely."""
        if not self._has_before:
            return None
        totals = Report(self.period.before, self.rule, self.tier, coverage=self.coverage).totals
        return {(total.rule_slug, total.tier_slug): total.figures for total in totals}

    @property
    def together_before(self) -> Figures | None:
        """Return the figures of all requests of the period before; `None` = it was not counted completely."""
        if self.before is None:
            return None
        if self._once is not None:
            return Report(self.period.before, coverage=self.coverage)._once
        return sum(self.before.values(), Figures())

    @property
    def _has_before(self) -> bool:
        """True if the period before was counted completely."""
        return self.coverage.since is not None and self.coverage.since <= self.period.before.start

    @cached_property
    def points(self) -> list[Point]:
        """The sums in each bucket of the period, in the current time zone.

        If the buckets that are left do not fit the current time zone, the project's is used: hours and days are stored
        in that.
        """
        starts, widest = self._starts(self.granularity)
        # Not in SQL: a database would merge the hour that comes twice in autumn, and SQLite would call Python for every
        # row, not only for every start.
        sums = [Figures()] * len(starts)
        for each in self.coverage.bucket_ranges(self.period, widest):  # one by one, in the order of SQLite's index
            rows: QuerySet[Any] = self._rows([each])
            if self._once is not None:
                rows = UsageTotal.objects.filter(each.condition)
            wanted = SUMS if self._once is None else SUMS_OF_REQUESTS
            for start, *figures in rows.order_by("start").values_list("start").annotate(**wanted):
                sums[bisect_right(starts, aware(start)) - 1] += Figures(*figures)
        ends = [*starts[1:], self.period.end]
        return [
            Point(max(start, self.period.start), min(end, self.period.end), each)
            for start, end, each in zip(starts, ends, sums, strict=True)
        ]

    def _starts(self, granularity: Granularity) -> tuple[list[datetime], Granularity]:
        """Return the starts of a series' buckets, and the widest granularity whose buckets each fit in one of them."""
        project = timezone.get_default_timezone()
        starts = list(buckets(*self.period, granularity, timezone.get_current_timezone()))
        fitting = [each for each in GRANULARITIES if all(floor(start, each, project) == start for start in starts)]
        widest = min(fitting[-1], granularity, key=GRANULARITIES.index)
        if GRANULARITIES.index(widest) < GRANULARITIES.index(self.coverage.finest(self.period.start)):
            return list(buckets(*self.period, granularity, project)), granularity
        return starts, widest

    def _rows(self, bucket_ranges: Iterable[BucketRange]) -> QuerySet[UsageBucket]:
        slugs = {"rule_slug": self.rule, "tier_slug": self.tier}
        wanted = {name: slug for name, slug in slugs.items() if slug is not None}
        return UsageBucket.objects.filter(_within(bucket_ranges), **wanted)

    @cached_property
    def top_partitions(self) -> list[TopPartitionRow]:
        """The top partitions of the rule or identity, of any tier, the one with most requests first; without, empty.

        by_rejected: in the order of rejected requests, and without partitions that have none. Few come last.
        """
        if self.rule is None and self.identity is None:
            return []
        if self.exact is not None:
            return self._exact_rows(self.exact, MAX_PARTITIONS)
        if self.by_rejected:
            order = few_last("sum_rejected"), "-sum_rejected", "-sum_allowed", "partition"
            rows = self._sums.filter(sum_rejected__gt=0).order_by(*order)
        else:
            with_requests = self._sums.alias(requests=F("sum_allowed") + F("sum_rejected"))
            rows = with_requests.order_by(few_last("requests"), "-requests", "-sum_rejected", "partition")
        return self._by_value(rows[:MAX_PARTITIONS])

    @cached_property
    def exact(self) -> QuerySet[Any] | None:
        """The exact usage of the rule's callers in the same hours; `None` = there is none."""
        rows = None if self.rule is None else exact_usage(self.rule, self.top_partitions_in)
        return rows if rows is not None and rows.exists() else None

    def _exact_rows(self, rows: QuerySet[Any], most: int | None = None) -> list[TopPartitionRow]:
        found = by_caller(rows, "rejected" if self.by_rejected else "requests", most)
        top = [TopPartitionRow(caller, each.allowed, each.rejected) for caller, _, _, each in found]
        return [each for each in top if each.rejected or not self.by_rejected]

    def _by_value(self, rows: Any) -> list[TopPartitionRow]:
        """Return the rows of these sums, one for each value that can be read: each HASH_KEY gave it another digest."""
        found: dict[str, TopPartitionRow] = {}
        for row in map(TopPartitionRow.of, rows):
            who = aliases_of(row.partition)[0]
            had = found.get(who, TopPartitionRow(who, 0, 0))
            found[who] = TopPartitionRow(
                max(who, had.partition, key=tail_of),
                row.allowed + had.allowed,
                row.rejected + had.rejected,
                row.estimated or had.estimated,
            )
        if not settings.HASH_KEY_FALLBACKS:
            return [*found.values()]
        figure = "rejected" if self.by_rejected else "requests"
        return sorted(found.values(), key=lambda row: (row.figures[figure] is None, -getattr(row, figure)))

    def compared(self, found: Sequence[TopPartitionRow]) -> list[TopPartitionRow]:
        """Return these top partitions with their shares, and their requests in the period before."""
        if not found:
            return []
        together, whole = self.together, self.top_partitions_in
        if whole != self.period or self.tier is not None:
            together = Report(whole, self.rule, coverage=self.coverage).together
        before: dict[str, int | None] | None = None
        if self._has_before:
            earlier = Report(self.period.before, self.rule, identity=self.identity, coverage=self.coverage)
            known = earlier._sums.filter(partition__in=[who for each in found for who in aliases_of(each.partition)])
            rows = self._by_value(known)
            if self.exact is not None and earlier.exact is not None:
                values = [caller_in(each.partition)[1] for each in found]
                rows = self._exact_rows(earlier.exact.filter(value__in=values))
            before = {row.partition: row.figures["requests"] for row in rows}
        return [
            each._replace(
                share=min(each.requests / together.requests, 1.0)
                if together.requests and each.figures["requests"] is not None
                else None,
                requests_before=None if before is None else before.get(each.partition, 0),
            )
            for each in found
        ]

    @property
    def identities(self) -> list[str]:
        """Return the identities that have top callers in the period."""
        rows = TopCaller.objects.filter(self._in_whole_hours)
        return [*rows.order_by("identity").values_list("identity", flat=True).distinct()]

    @property
    def top_partitions_in(self) -> Period:
        """Return the whole hours that the top partitions are from, or days: minutes have no top partitions."""
        complete_from = {**self.coverage.complete_from, Granularity.MINUTE: NEVER}
        return replace(self.coverage, complete_from=complete_from).widen(self.period)

    @property
    def _in_whole_hours(self) -> Q:
        return _within(self.coverage.bucket_ranges(self.top_partitions_in))

    @property
    def _sums(self) -> Any:
        rows: QuerySet[Any] = TopPartition.objects.filter(self._in_whole_hours, rule_slug=self.rule or "")
        if self.identity is not None:
            rows = TopCaller.objects.filter(self._in_whole_hours, identity=self.identity)
        sums = rows.order_by().values_list("partition")
        return sums.annotate(**SUMS_OF_CALLERS)


def _within(bucket_ranges: Iterable[BucketRange]) -> Q:
    """Return the condition that selects the rows of these ranges."""
    return reduce(or_, (each.condition for each in bucket_ranges), Q(pk__in=[]))


_SUMS_OF_EXACT: Final = {f"sum_{name}": Sum(name) for name in CallerUsage.COUNTS}
_REQUESTS: Final = F("sum_allowed") + F("sum_rejected") + F("sum_rejected_by_other")

#: The orders of callers with exact usage, by name.
ORDERS: Final = {name: f"-sum_{name}" for name in CallerUsage.COUNTS} | {"requests": "-requests", "caller": "value"}


def exact_usage(rule: str, period: Period) -> QuerySet[Any]:
    """Return the exact usage of a rule's callers in the hours that begin in a period."""
    within = {"hour__gte": stored(period.start), "hour__lt": stored(period.end)}
    return CallerUsage.objects.filter(identity__in=("", *EXACT), rule_slug=rule, **within)


def by_caller(rows: QuerySet[Any], order: str, most: int | None = None) -> list[tuple[Alias, str, str, Figures]]:
    """Return the sums of exact usage by caller, at most `most`: its alias, with a tail whatever REVEAL is, identity,
    value, and figures. order: one of `ORDERS`.
    """
    found, sums = [], rows.values_list("identity", "value").annotate(**_SUMS_OF_EXACT, requests=_REQUESTS)
    for identity, value, *counts, _requests in sums.order_by(ORDERS[order], "identity", "value")[:most]:
        caller = Alias.of(value, "")
        if identity:
            caller = keyed_digest(settings.HASH_KEY, encode_partition([(identity, value)]), (identity,))
        found.append((caller, identity, value, _of_exact(*counts)))
    return found


def sum_of_exact(rows: QuerySet[Any]) -> Figures:
    """Return the sum of exact usage."""
    return _of_exact(*(int(each or 0) for each in rows.aggregate(**_SUMS_OF_EXACT).values()))


def days_of(rule: str, caller: str, period: Period) -> list[Point]:
    """Return the exact usage of the caller of an alias by day, in the current time zone."""
    starts = list(buckets(*period, Granularity.DAY, timezone.get_current_timezone()))
    sums = {place: figures for _rule, place, figures in by_day(exact_usage(rule, period), {rule: caller}, starts)}
    ends = [*starts[1:], period.end]
    return [Point(*each, sums.get(place, Figures())) for place, each in enumerate(zip(starts, ends, strict=True))]


def by_day(
    rows: QuerySet[Any], digests: Mapping[str, str], starts: Sequence[datetime]
) -> Iterator[tuple[str, int, Figures]]:
    """Yield the exact usage of one caller in these rows: the rule, the day's place among these starts, the sums.

    digests: of the caller, by rule.
    """
    callers = {rule: caller_in(digest) for rule, digest in digests.items()}
    known = [Q(identity=identity, value=value) for identity, value in set(callers.values())]
    found = rows.filter(reduce(or_, known, Q(pk__in=[])), rule_slug__in=callers).order_by()
    # Days are compared with their starts: MySQL and MariaDB have no time zones unless an operator has loaded them.
    latest_first = [When(hour__gte=stored(each), then=place) for place, each in enumerate(starts)][::-1]
    day = Case(*latest_first, output_field=IntegerField())
    days = found.values_list("rule_slug", "identity", "value", day).annotate(**_SUMS_OF_EXACT)
    for rule, identity, value, place, *counts in days:
        if callers[rule] == (identity, value):
            yield rule, place, _of_exact(*counts)


def _of_exact(allowed: int, rejected: int, rejected_by_other: int, units: int) -> Figures:
    return Figures(allowed, rejected, rejected_by_other=rejected_by_other, units=units)


class Day(NamedTuple):
    """Known requests of the caller that one rule matched on one day."""

    date: date
    rule: str
    requests: int | None  # `None` = few: an estimate below 100 is no figure
    allowed: int | None  # `None` = few
    rejected: int | None  # `None` = few
    known_from: str  # exact (each was counted) or top (among the top 100 of a rule in an hour)
    estimated: bool = False  # whether the figures are estimates from a sample of requests; else they are exact
    rejected_by_other: int | None = None  # by another rule; `None` = not known
    units: int | None = None  # what the allowed ones cost; `None` = 1 each, or not known


class Usage(NamedTuple):
    """The last 30 days, as far as they are known."""

    since: date
    until: date
    complete: bool  # always false: only the days that are known as exact have all requests
    explanation: str
    days: Sequence[Day]


def usage_of(digests: Mapping[str, str]) -> Usage:
    """Return the known usage of the last 30 days. digests: of the caller, by rule.

    Two queries. Exact usage replaces top partitions, which cover some hours of a day.
    """
    zone = timezone.get_default_timezone()
    today = now().astimezone(zone).date()
    first = today - timedelta(days=DAYS - 1)
    starts = list(buckets(datetime.combine(first, time(12), zone), now(), Granularity.DAY, zone))
    days = (*_days_of_top_partitions(digests, starts, zone), *_exact_days(digests, starts, zone))
    days_by_rule = {(day.date, day.rule): day for day in days}
    explanation = _(
        "Rules with exact usage count every request of a caller. Others count requests by caller only in hours in "
        "which the caller was among the top callers of the rule (estimated if there were many requests)."
    )
    found = sorted(days_by_rule.values(), key=lambda day: (day.date, day.rule))
    return Usage(first, today, False, explanation, found)


def _exact_days(digests: Mapping[str, str], starts: Sequence[datetime], zone: tzinfo) -> Iterator[Day]:
    rows = CallerUsage.objects.filter(hour__gte=stored(starts[0]))
    for rule, place, each in by_day(rows, digests, starts):
        counts = each.requests, each.allowed, each.rejected, "exact", False, each.rejected_by_other
        yield Day(starts[place].astimezone(zone).date(), rule, *counts, each.units if each.has_costs else None)


def _days_of_top_partitions(digests: Mapping[str, str], starts: Sequence[datetime], zone: tzinfo) -> Iterator[Day]:
    # With a list of days: so all columns of the unique index are given, and no other caller's rows are read.
    rows = TopPartition.objects.filter(
        granularity=TopPartition.Granularity.DAY, start__in=map(stored, starts),
        rule_slug__in=list(digests), partition__in=set(digests.values()),
    )  # fmt: skip
    for row in rows.iterator():
        if digests[row.rule_slug] == row.partition:
            figures = TopPartitionRow(Alias.of(row.partition, ""), row.allowed, row.rejected, row.estimated).figures
            counts = figures["requests"], figures["allowed"], figures["rejected"]
            yield Day(aware(row.start).astimezone(zone).date(), row.rule_slug, *counts, "top", row.estimated)
