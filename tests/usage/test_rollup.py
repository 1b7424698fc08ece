"""Which hour and day a minute is counted in, and what is deleted when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.models import Rule, RuleSetVersion, TopPartition, UsageBucket, UsageSample
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.usage.collector import collect as module
from django_ratelimiter.usage.collector import prune as pruning
from django_ratelimiter.usage.collector.collect import collect
from django_ratelimiter.usage.collector.prune import prune
from django_ratelimiter.usage.times import aware, starts_of, stored


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
        # Havana's summer ends at one in the morning: midnight comes twice, and the day begins with the first.
        ("America/Havana", (2024, 11, 3, 5, 30), (2024, 11, 3, 5), (2024, 11, 3, 4)),
        # Beirut's begins at midnight, which does not come: the day begins at one.
        ("Asia/Beirut", (2026, 3, 28, 22, 30), (2026, 3, 28, 22), (2026, 3, 28, 22)),
        # Clocks of the Chatham Islands change at a quarter to three and a quarter to four. No hour begins after its
        # minutes, and each is of one piece.
        ("Pacific/Chatham", (2026, 9, 26, 14, 5), (2026, 9, 26, 13, 15), (2026, 9, 26, 11, 15)),
        ("Pacific/Chatham", (2026, 4, 4, 13, 59), (2026, 4, 4, 13, 15), (2026, 4, 4, 10, 15)),
        ("Pacific/Chatham", (2026, 4, 4, 14, 5), (2026, 4, 4, 13, 15), (2026, 4, 4, 10, 15)),
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
def test_a_count_that_comes_after_its_minute_was_deleted_joins_its_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, at = MemoryEngine(), timezone.now() - timedelta(days=20)
    monkeypatch.setattr(module, "get_engine", lambda: engine)
    for number in (1, 2):
        charge = Charge("key", Limit(9, 60), usage="rule|free")
        engine.check([charge], now_us=int(at.timestamp() * 1_000_000))
        collect()
        assert prune() == 2  # of the rule, and of all rules
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


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("retention", "left"),
    [
        ({"version": 3}, [9, 8, 7]),  # the newest, or younger than three days
        ({"version": 1}, [9, 8]),
        ({"version": 30}, [9, 8, 7, 6, 5]),  # no more, however young
        ({"version": None}, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        ({}, [9, 8, 7, 6, 5]),
    ],
)
def test_versions_are_kept_by_age_and_by_number(
    settings: Any, monkeypatch: pytest.MonkeyPatch, retention: dict[str, int | None], left: list[int]
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": retention}
    monkeypatch.setattr(pruning, "BATCH", 2)
    monkeypatch.setattr(pruning, "MIN_VERSIONS", 2)
    monkeypatch.setattr(pruning, "MAX_VERSIONS", 5)
    RuleSetVersion.objects.all().delete()
    for number in range(10):  # the earlier epoch has the higher numbers, and each is a day younger than the last
        epoch, counted = (1, 100 + number) if number < 8 else (2, number)
        version = RuleSetVersion.objects.create(number=counted, epoch=epoch, summary=str(number), snapshot={})
        created = timezone.now() - timedelta(days=9 - number, minutes=1)
        RuleSetVersion.objects.filter(pk=version.pk).update(created_at=created)
    with CaptureQueriesContext(connection) as queries:
        assert prune() == 10 - len(left)
    assert not any("snapshot" in query["sql"] for query in queries)
    assert [int(text) for text in RuleSetVersion.objects.values_list("summary", flat=True)] == left
    assert prune() == 0


@pytest.mark.django_db(transaction=True)
def test_the_version_in_force_is_kept_however_old(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": {"version": 1}}
    monkeypatch.setattr(pruning, "MIN_VERSIONS", 1)
    for slug in ("one", "two"):
        Rule.objects.create(slug=slug, name=slug)
    RuleSetVersion.objects.create(number=1, epoch=1, snapshot={})
    RuleSetVersion.objects.update(created_at=timezone.now() - timedelta(days=400))
    in_force = storage.load().version
    prune()
    kept = RuleSetVersion.objects.get()
    assert (kept.number, kept.epoch) == in_force


@pytest.mark.django_db
def test_a_day_that_still_runs_is_kept(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last of its 25 hours, though it began more than a day ago."""
    settings.TIME_ZONE = "Europe/Berlin"
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": {"day": 1}}
    monkeypatch.setattr(pruning, "now", lambda: datetime(2026, 10, 25, 22, 30, tzinfo=UTC))
    for start in (datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 23, 22, tzinfo=UTC)):
        UsageBucket.objects.create(rule_slug="rule", granularity="day", start=start)
    assert prune() == 1
    assert UsageBucket.objects.get().start == datetime(2026, 10, 24, 22, tzinfo=UTC)


def test_without_time_zone_support_rows_are_in_the_zone_of_the_project(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    with timezone.override("America/New_York"):
        assert stored(at) == datetime(2026, 7, 1, 14)  # noqa: DTZ001
        assert aware(stored(at)) == at
