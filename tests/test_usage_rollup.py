"""Which hour and day a minute is counted in, and what is deleted when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.models import TopPartition, UsageBucket, UsageSample
from django_ratelimiter.usage import collect as module
from django_ratelimiter.usage import prune as pruning
from django_ratelimiter.usage.collect import collect
from django_ratelimiter.usage.prune import prune
from django_ratelimiter.usage.rollup import starts_of
from django_ratelimiter.usage.times import start_of

BERLIN = ZoneInfo("Europe/Berlin")


def minute(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) // 60  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("zone", "at", "hour", "day"),
    [
        ("UTC", (2026, 3, 1, 23, 59), (2026, 3, 1, 23), (2026, 3, 1)),
        ("Europe/Berlin", (2026, 3, 1, 22, 59), (2026, 3, 1, 22), (2026, 2, 28, 23)),
        ("Europe/Berlin", (2026, 3, 1, 23, 0), (2026, 3, 1, 23), (2026, 3, 1, 23)),
        # Summer time begins on 29 March 2026 at 01:00 UTC: the day has 23 hours.
        ("Europe/Berlin", (2026, 3, 29, 21, 59), (2026, 3, 29, 21), (2026, 3, 28, 23)),
        ("Europe/Berlin", (2026, 3, 29, 22, 0), (2026, 3, 29, 22), (2026, 3, 29, 22)),
        # It ends on 25 October 2026 at 01:00 UTC: the hour from 2 comes twice, and the day has 25.
        ("Europe/Berlin", (2026, 10, 25, 0, 30), (2026, 10, 25, 0), (2026, 10, 24, 22)),
        ("Europe/Berlin", (2026, 10, 25, 1, 30), (2026, 10, 25, 1), (2026, 10, 24, 22)),
        ("Europe/Berlin", (2026, 10, 25, 22, 59), (2026, 10, 25, 22), (2026, 10, 24, 22)),
        ("Asia/Kolkata", (2026, 3, 1, 18, 29), (2026, 3, 1, 17, 30), (2026, 2, 28, 18, 30)),
        ("Asia/Kolkata", (2026, 3, 1, 18, 30), (2026, 3, 1, 18, 30), (2026, 3, 1, 18, 30)),
    ],
)
def test_hours_and_days_are_those_of_the_project(
    settings: Any, zone: str, at: tuple[int, ...], hour: tuple[int, ...], day: tuple[int, ...]
) -> None:
    settings.TIME_ZONE = zone
    utc = [datetime(*moment, tzinfo=UTC) for moment in (at, hour, day)]  # type: ignore[arg-type,misc]
    with timezone.override("America/New_York"):  # the reader's, which is nobody's business here
        assert list(starts_of(minute(*at)).values()) == utc


@pytest.mark.django_db
@pytest.mark.parametrize(("day", "hours"), [((2026, 3, 28, 23), 23), ((2026, 10, 24, 22), 25), ((2026, 7, 1, 22), 24)])
def test_a_day_is_the_sum_of_its_hours(
    settings: Any, monkeypatch: pytest.MonkeyPatch, day: tuple[int, ...], hours: int
) -> None:
    """One request in each minute of three days: every bucket has as many as it has minutes."""
    settings.TIME_ZONE = "Europe/Berlin"
    engine, first = MemoryEngine(), minute(*day)
    monkeypatch.setattr(module, "get_engine", lambda: engine)
    monkeypatch.setattr(engine, "take_usage", lambda: engine._batches)
    for each in range(first - 60, first + hours * 60 + 60, 10):
        engine._batches[f"{each}:{each}"] = {"rule|free\na": 1}  # type: ignore[assignment]
    assert collect().requests == (hours + 2) * 6
    days = UsageBucket.objects.filter(granularity="day").order_by("start")
    assert list(days.values_list("allowed", flat=True)) == [6, hours * 6, 6]
    assert days[1].start == start_of(first)
    assert set(UsageBucket.objects.filter(granularity="hour").values_list("allowed", flat=True)) == {6}
    assert UsageBucket.objects.filter(granularity="hour").count() == hours + 2


@pytest.mark.django_db
def test_a_count_that_comes_after_its_minute_was_deleted_joins_its_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, at = MemoryEngine(), timezone.now() - timedelta(days=20)
    monkeypatch.setattr(module, "get_engine", lambda: engine)
    for number in (1, 2):
        charge = Charge("key", Limit(9, 60), usage="rule|free")
        engine.check([charge], now_us=int(at.timestamp() * 1_000_000))
        collect()
        assert prune() == 1
        assert set(UsageBucket.objects.values_list("granularity", "allowed")) == {("hour", number), ("day", number)}


@pytest.mark.django_db
def test_each_granularity_is_kept_for_its_time(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": {"minute": 2, "hour": 4, "day": None}}
    monkeypatch.setattr(pruning, "BATCH", 2)
    for age in range(6):
        start = timezone.now() - timedelta(days=age, minutes=1)
        UsageSample.objects.create(rule_slug="rule", minute=start, partition_hash="p", count=1)
        for granularity in ("minute", "hour", "day"):
            UsageBucket.objects.create(rule_slug="rule", granularity=granularity, start=start)
            if granularity != "minute":
                TopPartition.objects.create(rule_slug="rule", granularity=granularity, start=start, partition="p")
    assert prune() == 4 + 4 + 2 + 2
    left = {
        granularity: UsageBucket.objects.filter(granularity=granularity).count()
        for granularity in ("minute", "hour", "day")
    }
    assert left == {"minute": 2, "hour": 4, "day": 6}
    assert [TopPartition.objects.filter(granularity=each).count() for each in ("hour", "day")] == [4, 6]
    assert UsageSample.objects.count() == 2
    assert prune() == 0
