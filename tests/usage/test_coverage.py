"""Reports read the widest buckets that fit: everything once, whatever has been deleted so far."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from django_ratelimiter.models import UsageBucket
from django_ratelimiter.usage.collector.prune import prune
from django_ratelimiter.usage.reports import coverage
from django_ratelimiter.usage.reports import totals as reports
from django_ratelimiter.usage.reports.coverage import DAY, HOUR, NEVER, Period
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.times import Granularity, floor, now, starts_of

pytestmark = pytest.mark.django_db

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _in_berlin(settings: Any) -> Iterator[None]:
    settings.TIME_ZONE = "Europe/Berlin"
    with timezone.override(BERLIN):
        yield


def record(moments: list[datetime]) -> None:
    """Count one admitted request at each moment, as the collector does."""
    rows: Counter[tuple[str, datetime]] = Counter()
    for moment in moments:
        rows.update(starts_of(int(moment.timestamp()) // 60).items())
    UsageBucket.objects.bulk_create(
        UsageBucket(rule_slug="rule", granularity=granularity, start=start, allowed=allowed)
        for (granularity, start), allowed in rows.items()
    )


def trace(start: datetime, end: datetime, count: int, seed: int = 1) -> list[datetime]:
    chance = random.Random(seed)
    minutes = (end - start) // MINUTE
    return sorted(start + chance.randrange(minutes) * MINUTE for _ in range(count))


def admitted(period: Period) -> tuple[int, int]:
    """What the totals say, and what the series does."""
    report = Report(period)
    totals, points = report.totals, report.points
    return sum(total.figures.allowed for total in totals), sum(point.figures.allowed for point in points)


class TestReading:
    def test_wide_buckets_are_read_and_not_minutes(self) -> None:
        end = floor(now(), Granularity.MINUTE, BERLIN)
        record(trace(end - 30 * DAY, end, 500))
        UsageBucket.objects.filter(granularity="day").update(allowed=10_000)
        bucket_ranges = coverage.read_coverage().bucket_ranges(Period(end - 7 * DAY, end))
        days = [piece for piece in bucket_ranges if piece.granularity is Granularity.DAY]
        assert (days[0].end - days[0].start) / DAY > 5.9
        assert all(before.end == after.start for before, after in pairwise(bucket_ranges))
        assert admitted(Period(end - 7 * DAY, end))[0] > 5_000


class TestAfterDeletion:
    @pytest.fixture
    def moments(self) -> list[datetime]:
        """A trace of 130 days, of which minutes and hours were deleted as RETENTION says."""
        end = floor(now(), Granularity.MINUTE, BERLIN)
        moments = trace(end - 130 * DAY, end, 600)
        record(moments)
        prune()
        return moments

    @pytest.mark.parametrize("days", [1, 7, 8, 30, 100, 120])
    def test_a_period_is_widened_to_what_is_left(self, moments: list[datetime], days: int) -> None:
        asked = reports.last(days * DAY + 7 * MINUTE)
        period = coverage.read_coverage().widen(asked)
        unit = MINUTE if days < 7 else HOUR if days < 99 else DAY
        assert timedelta(0) <= asked.start - period.start < (25 * HOUR if unit == DAY else unit)
        assert period.end == asked.end
        expected = sum(period.start <= moment < period.end for moment in moments)
        assert admitted(asked) == (expected, expected)

    def test_what_was_only_partly_deleted_is_not_read(self, moments: list[datetime]) -> None:
        """A deletion that was killed leaves some of the old minutes."""
        at = min(moments) + 40 * DAY
        UsageBucket.objects.create(rule_slug="rule", granularity="minute", start=at, allowed=10_000)
        asked = Period(at + DAY / 7, at + 3 * DAY / 7)
        period = coverage.read_coverage().widen(asked)
        expected = sum(period.start <= moment < period.end for moment in moments)
        assert period != asked
        assert admitted(asked) == (expected, expected)

    def test_a_longer_retention_brings_nothing_back(self, moments: list[datetime], settings: Any) -> None:
        settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": {"minute": None, "hour": None, "day": None}}
        for days in (7, 9, 30, 120):
            period = coverage.read_coverage().widen(reports.last(days * DAY))
            expected = sum(period.start <= moment < period.end for moment in moments)
            assert admitted(period) == (expected, expected)


def test_minutes_alone_are_read_where_there_were_no_wider_buckets_yet() -> None:
    start = datetime(2026, 6, 1, 10, 30, tzinfo=UTC)
    moments = [start + number * 7 * MINUTE for number in range(1_000)]
    record(moments)
    began = start + 30 * HOUR
    UsageBucket.objects.exclude(granularity="minute").filter(start__lt=began).delete()
    for length in (5 * HOUR, 50 * HOUR, 10 * DAY):
        period = Period(start, start + length)
        expected = sum(moment < period.end for moment in moments)
        assert admitted(period) == (expected, expected)


def test_nothing_at_all() -> None:
    found = coverage.read_coverage()
    assert found.since is None
    assert found.complete_from[Granularity.HOUR] == found.complete_from[Granularity.DAY] == NEVER
    assert admitted(reports.last(365 * DAY)) == (0, 0)


def test_counting_began_in_the_first_minute_and_not_at_the_midnight_before() -> None:
    first = datetime(2026, 6, 1, 10, 30, tzinfo=UTC)
    record([first, first + 9 * HOUR])
    assert coverage.read_coverage().since == first
    UsageBucket.objects.filter(granularity="minute", start=first).delete()
    assert coverage.read_coverage().since == datetime(2026, 6, 1, 10, tzinfo=UTC)
    UsageBucket.objects.filter(granularity="hour").delete()
    assert coverage.read_coverage().since == first + 9 * HOUR  # the first minute there is of that day
