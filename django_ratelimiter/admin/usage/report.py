"""The data of a report; each part is read from the database when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from ...usage.reports import busiest
from ...usage.reports import partitions as callers
from ...usage.reports import totals as reports
from ...usage.reports.busiest import HourOfDay
from ...usage.reports.coverage import Period, read_coverage
from ...usage.reports.partitions import PartitionCount, TopPartitionRow
from ...usage.reports.totals import Figures, Freshness, Point, Total
from ...usage.times import Granularity

#: The order of the top partitions: the value of "by" in a URL.
BY_REJECTED: Final = "rejected"


class Report:
    """The usage of all rules, or of one, in a period; of all tiers, or of one.

    period: as requested, extended to what is left in the database. rule, tier: slugs; `None` = all. caller: the digest
    of a caller to search for; "" = none.
    """

    def __init__(
        self, period: Period, rule: str | None = None, tier: str | None = None, by: str = "", caller: str = ""
    ) -> None:
        self.rule, self.tier, self.by_rejected, self.caller = rule, tier, by == BY_REJECTED, caller
        self._coverage = read_coverage()
        self.requested_period, self.period = period, self._coverage.widen(period)

    @property
    def granularity(self) -> Granularity:
        """Return the width of the chart's bars."""
        return self._coverage.granularity(self.period)

    @cached_property
    def totals(self) -> list[Total]:
        return reports.totals(self.period, self.rule, self.tier, self._coverage, self.callers_by)

    @cached_property
    def together(self) -> Figures:
        return sum((total.figures for total in self.totals), Figures())

    @cached_property
    def points(self) -> list[Point]:
        return reports.series(self.period, self.rule, self.tier, self._coverage)

    @cached_property
    def before(self) -> Mapping[tuple[str, str], Figures] | None:
        """The figures of the period before, by rule and tier; `None` = it was not counted completely."""
        before = self.period.before
        if self._coverage.since is None or self._coverage.since > before.start:
            return None
        totals = reports.totals(before, self.rule, self.tier, self._coverage)
        return {(total.rule_slug, total.tier_slug): total.figures for total in totals}

    @property
    def callers_by(self) -> Granularity:
        """Return whether different callers are counted by the hour or by the day."""
        return callers.counted_by(self.period, self._coverage)

    @cached_property
    def most_callers(self) -> Mapping[tuple[str, str], int]:
        """The highest number of different callers in one hour or day, by rule and tier."""
        where = self.rule, self.tier, self._coverage
        return callers.most_partitions(self.totals, self.period, self.callers_by, *where)

    @cached_property
    def callers(self) -> list[PartitionCount]:
        """Different callers of each hour or day; empty for all rules, which would count a caller many times."""
        return [] if self.rule is None else callers.partition_counts(self.period, self.callers_by, self.rule, self.tier)

    @cached_property
    def hours(self) -> list[Point]:
        """The hours of the last weeks; empty for a short period, or if no hours are left."""
        return busiest.by_hour(self.period, self.rule, self.tier, self._coverage)

    @cached_property
    def day(self) -> list[HourOfDay]:
        return busiest.of_day(self.hours) if self.hours else []

    @cached_property
    def busiest(self) -> list[Point]:
        return busiest.busiest(self.hours)

    @cached_property
    def top_partitions(self) -> list[TopPartitionRow]:
        """The top partitions of the rule, of any tier; empty for all rules."""
        if self.rule is None:
            return []
        return callers.top_partitions(self.period, self.rule, by_rejected=self.by_rejected, coverage=self._coverage)

    @cached_property
    def search_result(self) -> TopPartitionRow | None:
        """The caller that was searched for; `None` if it was no top partition."""
        if self.rule is None or not self.caller:
            return None
        return callers.one_partition(self.period, self.rule, self.caller, coverage=self._coverage)

    @property
    def top_partitions_in(self) -> Period:
        """Return the hours that the top partitions are from."""
        return callers.hours(self.period, self._coverage)

    @cached_property
    def fresh(self) -> Freshness:
        return reports.freshness()
