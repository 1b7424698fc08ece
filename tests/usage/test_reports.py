"""Totals, series and their buckets, on either database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from django_ratelimiter.models import UsageBatch, UsageBucket
from django_ratelimiter.usage.reports import chart, totals
from django_ratelimiter.usage.reports.coverage import Period
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.reports.totals import Figures, Freshness, Point, Total
from django_ratelimiter.usage.times import Granularity, buckets, floor, stored

Queries = Callable[[int], Any]

START = datetime(2025, 11, 21, 14, 5, tzinfo=UTC)


def add(minutes: float = 0, rule: str = "rule", tier: str = "free", start: datetime = START, **figures: Any) -> None:
    at = stored(start + timedelta(minutes=minutes))
    UsageBucket.objects.create(rule_slug=rule, tier_slug=tier, start=at, **figures)


def hours(count: float) -> Period:
    return Period(START, START + timedelta(hours=count))


@pytest.mark.parametrize(
    ("is_last", "start", "end"),
    [
        (False, "2026-03-01T00:00+01:00", None),
        (True, "2026-02-01T00:00+01:00", "2026-03-01T00:00+01:00"),
    ],
)
def test_months_of_the_calendar(is_last: bool, start: str, end: str | None) -> None:
    """In Berlin, the day after the clocks have changed."""
    at = datetime(2026, 3, 30, 9, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    found = totals.month(at, is_last=is_last)
    assert found == (datetime.fromisoformat(start), at if end is None else datetime.fromisoformat(end))
    assert found.start.tzinfo is found.end.tzinfo is UTC
    begun = totals.month(at.replace(day=1, hour=0, minute=0), is_last=is_last)
    assert begun.end > begun.start


@pytest.mark.django_db
class TestTotals:
    def test_by_rule_and_tier(self, django_assert_num_queries: Queries) -> None:
        add(0, allowed=1, rejected=2, shadow_rejected=3, soft_exceeded=1)
        add(1, allowed=10)
        add(1, tier="", rejected=5)
        add(1, rule="other", allowed=7)
        with django_assert_num_queries(4):  # three for what there is to read
            assert Report(hours(1)).totals == [
                Total("other", "free", Figures(allowed=7)),
                Total("rule", "", Figures(rejected=5)),
                Total("rule", "free", Figures(11, 2, 3, 1)),
            ]

    def test_counts_beyond_32_bits(self) -> None:
        add(0, allowed=2**40)
        add(1, allowed=2**40)
        assert Report(hours(1)).totals == [Total("rule", "free", Figures(allowed=2**41))]


def test_figures() -> None:
    figures = Figures(allowed=6, rejected=3, shadow_rejected=1, soft_exceeded=2)
    assert (figures.requests, figures.rejection_rate) == (10, 0.3)
    assert Figures().rejection_rate is None
    assert figures + figures == Figures(12, 6, 2, 4)


@pytest.mark.parametrize(
    ("length", "granularity"),
    [
        (1, Granularity.MINUTE),
        (3, Granularity.MINUTE),
        (4, Granularity.HOUR),
        (24 * 8, Granularity.HOUR),
        (24 * 8 + 1, Granularity.DAY),
    ],
)
def test_steps(length: float, granularity: Granularity) -> None:
    assert hours(length).granularity is granularity


@pytest.mark.django_db
class TestSeries:
    def test_minutes(self, django_assert_num_queries: Queries) -> None:
        add(0, allowed=1)
        add(0, rule="other", rejected=2)
        add(2, allowed=4)
        with django_assert_num_queries(5):  # three for what there is to read, one for totals
            points = Report(hours(0.05)).points
        assert [point.figures for point in points] == [Figures(1, 2), Figures(), Figures(4)]
        assert points[0][:2] == (START, START + timedelta(minutes=1))

    def test_without_time_zone_support(self, settings: Any) -> None:
        settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
        add(0, allowed=1)
        assert UsageBucket.objects.get().start == datetime(2025, 11, 21, 15, 5)  # noqa: DTZ001
        assert Report(hours(1)).totals == [Total("rule", "free", Figures(allowed=1))]
        for period in (hours(1), hours(24), hours(24 * 20)):
            assert [point.start for point in Report(period).points if point.figures.requests] == [START]


class TestBuckets:
    @pytest.mark.parametrize("granularity", list(Granularity))
    @pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Havana"])
    def test_they_cover_a_year_without_gap_or_overlap(self, granularity: Granularity, zone: str) -> None:
        place, start = ZoneInfo(zone), datetime(2025, 1, 1, tzinfo=UTC)
        end = start + timedelta(days=3 if granularity is Granularity.MINUTE else 366)
        starts = list(buckets(start, end, granularity, place))
        assert starts[0] <= start
        assert all(before < after for before, after in pairwise(starts))
        assert all(floor(at, granularity, place) == at for at in starts)
        known = set(starts)
        minutes = range(0, (end - start) // timedelta(minutes=1), 89)
        assert all(floor(start + timedelta(minutes=minute), granularity, place) in known for minute in minutes)

    def test_an_hour_that_comes_twice_is_two(self) -> None:
        start = datetime(2025, 10, 26, tzinfo=UTC)
        assert len(list(buckets(start, start + timedelta(hours=4), Granularity.HOUR, ZoneInfo("Europe/Berlin")))) == 4


def test_the_last_period_ends_with_the_last_whole_minute() -> None:
    period = totals.last(timedelta(hours=1))
    assert period.end - period.start == timedelta(hours=1)
    assert timedelta(0) <= datetime.now(UTC) - period.end < timedelta(minutes=1, seconds=5)
    assert (period.end.second, period.end.microsecond) == (0, 0)


@pytest.mark.django_db
def test_freshness() -> None:
    assert totals.freshness() == Freshness(None, None)
    add(0)
    add(5)
    batch = UsageBatch.objects.create(batch_id="1:a")
    assert totals.freshness() == Freshness(batch.collected_at, START + timedelta(minutes=5))


class TestChart:
    @pytest.fixture(autouse=True)
    def _in_utc(self) -> Iterator[None]:
        with timezone.override(UTC):
            yield

    def points(self, *figures: Figures, width: timedelta = timedelta(minutes=1)) -> list[Point]:
        return [Point(START + i * width, START + (i + 1) * width, each) for i, each in enumerate(figures)]

    def test_parts_stand_on_each_other(self) -> None:
        bars = chart.draw(self.points(Figures(40, 20, 20), Figures())).bars
        assert [tuple(part) for part in bars[0].segments] == [
            ("allowed", "5.0000%", "50.0000%", "40.0000%", "50.0000%"),
            ("rejected", "5.0000%", "25.0000%", "40.0000%", "25.0000%"),
            ("shadow", "5.0000%", "0.0000%", "40.0000%", "25.0000%"),
        ]
        assert bars[1][:3] == ("50.0000%", "50.0000%", [])

    def test_bars_in_words(self) -> None:
        drawn = chart.draw(self.points(Figures(1), Figures(1200, 34, 5)))
        assert drawn.bars[1].label == "21 Nov, 14:06\u201314:07: 1,200 allowed, 34 rejected, 5 would be rejected"
        assert drawn.busiest == drawn.bars[1].label

    def test_a_day_in_words(self) -> None:
        midnight = START.replace(hour=0, minute=0)
        assert chart.span(Point(midnight, midnight + timedelta(days=1), Figures())) == "21 Nov"
        assert chart.span(Point(START, midnight + timedelta(days=1), Figures())) == "21 Nov, 14:05\u201300:00"

    @pytest.mark.parametrize(
        ("highest", "top"), [(0, "4"), (4, "4"), (5, "8"), (13, "20"), (21, "40"), (81, "120"), (999_999, "1,200,000")]
    )
    def test_the_value_axis_ends_at_a_round_number(self, highest: int, top: str) -> None:
        lines = chart.draw(self.points(Figures(highest))).lines
        assert (lines[0].at, lines[0].label) == ("0.0000%", top)
        assert (lines[-1].at, lines[-1].label) == ("100.0000%", "0")

    @pytest.mark.parametrize(
        ("period", "labels"),
        [
            (hours(1), ["14:10", "14:20", "14:30", "14:40", "14:50", "15:00"]),
            (hours(24), ["15:00", "18:00", "21:00", "00:00", "03:00", "06:00", "09:00", "12:00"]),
            (hours(24 * 7), ["22 Nov", "23 Nov", "24 Nov", "25 Nov", "26 Nov", "27 Nov", "28 Nov"]),
            (hours(24 * 30), ["23 Nov", "30 Nov", "7 Dec", "14 Dec", "21 Dec"]),
        ],
    )
    def test_marks_on_the_time_axis(self, period: Period, labels: list[str]) -> None:
        starts = [*buckets(*period, period.granularity, UTC), period.end]
        points = [Point(max(start, period.start), end, Figures()) for start, end in pairwise(starts)]
        assert [mark.label for mark in chart.draw(points).ticks] == labels

    @pytest.mark.parametrize("days", [9, 10, 17, 61, 62, 123, 366])
    def test_marks_never_crowd(self, days: int) -> None:
        points = self.points(*[Figures()] * days, width=timedelta(days=1))
        at_midnight = [point._replace(start=floor(point.start, Granularity.DAY, UTC)) for point in points]
        assert 2 <= len(chart.draw(at_midnight).ticks) <= chart.MAX_TICKS

    def test_without_points(self) -> None:
        drawn = chart.draw([])
        assert (drawn.bars, drawn.ticks, drawn.busiest) == ([], [], "")
