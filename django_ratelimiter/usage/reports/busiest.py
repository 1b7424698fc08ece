"""The hours with most requests: by the hour of the day, and the busiest hours."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final, NamedTuple

from django.utils import timezone

from ..times import Granularity
from . import totals
from .coverage import DAY, HOUR, Coverage, Period, read_coverage
from .totals import Figures, Point

#: The part of a period, from its end, that is used: whole weeks, so that each weekday counts alike.
MAX_PERIOD: Final = 28 * DAY

#: The number of busiest hours that are shown.
MAX_HOURS: Final = 10


class HourOfDay(NamedTuple):
    """Requests in one hour of the day, in the current time zone.

    time: the total duration of this hour in the period.
    """

    hour: int
    figures: Figures
    time: timedelta

    @property
    def requests(self) -> float:
        """The average of one such hour; 0 if there was none."""
        return self.figures.requests * (HOUR / self.time) if self.time else 0.0


def by_hour(
    period: Period, rule: str | None = None, tier: str | None = None, coverage: Coverage | None = None
) -> list[Point]:
    """Return the hours of the period's last four weeks that are left; empty for less than two days."""
    coverage = coverage or read_coverage()
    start = max(period.start, period.end - MAX_PERIOD)
    if coverage.finest(start) is Granularity.DAY:
        start = coverage.complete_from[Granularity.HOUR]
    if period.end - start < 2 * DAY:
        return []
    return totals.series(Period(start, period.end), rule, tier, coverage, Granularity.HOUR)


def of_day(hours: Iterable[Point]) -> list[HourOfDay]:
    """Return the hours of the day from 0 to 23."""
    sums = [HourOfDay(hour, Figures(), timedelta()) for hour in range(24)]
    for point in hours:
        hour = timezone.localtime(point.start).hour
        sums[hour] = HourOfDay(hour, sums[hour].figures + point.figures, sums[hour].time + (point.end - point.start))
    return sums


def busiest(hours: Iterable[Point]) -> list[Point]:
    """Return the hours with the most requests, the busiest first; none without requests."""
    busy = [point for point in hours if point.figures.requests]
    return sorted(busy, key=lambda point: (-point.figures.requests, point.start))[:MAX_HOURS]
