"""Minutes that were collected before there were hours and days are given their part in these."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from django_ratelimiter.models import UsageBucket
from django_ratelimiter.usage.times import stored

pytestmark = pytest.mark.django_db

#: In Berlin, where the day of this hour is one of 25, whose last hour this is.
LAST = datetime(2026, 10, 25, 22, tzinfo=UTC)
DAY, NEXT = LAST - timedelta(hours=24), LAST + timedelta(hours=1)


def add(granularity: str, start: datetime, tier: str = "", **counts: int) -> None:
    UsageBucket.objects.create(rule_slug="rule", tier_slug=tier, granularity=granularity, start=stored(start), **counts)


def migrate() -> dict[tuple[str, str, datetime], tuple[int, int]]:
    """What hours and days hold then: allowed and denied, by granularity, tier and start."""
    migration = import_module("django_ratelimiter.migrations.0012_hours_and_days_of_minutes")
    migration.fill(apps, connection.SchemaEditorClass(connection))  # type: ignore[misc]
    rows = UsageBucket.objects.exclude(granularity="minute")
    return {(row.granularity, row.tier_slug, row.start): (row.allowed, row.denied) for row in rows}


@pytest.fixture(autouse=True, params=[True, False], ids=["aware", "naive"])
def _in_berlin(settings: Any, request: pytest.FixtureRequest) -> None:
    settings.TIME_ZONE, settings.USE_TZ = "Europe/Berlin", request.param


def test_minutes_join_hours_and_days() -> None:
    for minute in (0, 59, 60):
        add("minute", LAST + timedelta(minutes=minute), allowed=minute + 1, denied=2)
    add("minute", DAY, "free", allowed=7)
    found = migrate()
    assert found == {
        ("hour", "", stored(LAST)): (61, 4),
        ("hour", "", stored(NEXT)): (61, 2),
        ("hour", "free", stored(DAY)): (7, 0),
        ("day", "", stored(DAY)): (61, 4),
        ("day", "", stored(NEXT)): (61, 2),
        ("day", "free", stored(DAY)): (7, 0),
    }
    assert migrate() == found


def test_what_is_there_may_be_a_part_or_more() -> None:
    """Of the first hour the minutes before are missing in it; of the next one minutes were deleted."""
    for minute in (0, 30, 60):
        add("minute", LAST + timedelta(minutes=minute), allowed=10)
    add("hour", LAST, allowed=10, partitions=3)
    add("day", DAY, allowed=15)  # five of them in an hour that was deleted
    add("hour", NEXT, allowed=50)
    add("day", NEXT, allowed=90)
    assert migrate() == {
        ("hour", "", stored(LAST)): (20, 0),
        ("day", "", stored(DAY)): (20, 0),
        ("hour", "", stored(NEXT)): (50, 0),
        ("day", "", stored(NEXT)): (90, 0),
    }
    assert UsageBucket.objects.get(granularity="hour", start=stored(LAST)).partitions == 3


def test_days_of_another_zone_are_left_alone() -> None:
    """They would be counted twice."""
    add("minute", LAST, allowed=10)
    add("hour", LAST, allowed=10)
    add("day", DAY + timedelta(hours=2), allowed=10)
    assert len(migrate()) == 2


def test_nothing_to_do() -> None:
    assert migrate() == {}
