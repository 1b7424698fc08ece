"""What forecasts and proposals say of callers whose limits are multiplied."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.test import override_settings
from django.utils.timezone import localtime

from django_ratelimiter.engine import Limit
from django_ratelimiter.forecast.samples.doubts import doubts
from django_ratelimiter.forecast.samples.forecast import Forecast
from django_ratelimiter.models import Rule, Tier, TierAssignment
from django_ratelimiter.usage.reports.coverage import Period
from django_ratelimiter.usage.times import stored

from .test_samples import FIXED, PERIOD, START, rule
from .traffic import record

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
HAVE, HAD = "Some callers have a multiplier", "were changed or deleted"


def grant(multiplier: str = "2", **times: Any) -> TierAssignment:
    tier, _ = Tier.objects.get_or_create(slug="free")
    stored_times = {name: stored(at) for name, at in times.items()}
    return TierAssignment.objects.create(tier=tier, api_key_hash="a" * 64, multiplier=multiplier, **stored_times)


def said(period: Period = PERIOD) -> str:
    return " ".join(doubts(Forecast(None, rule(others=Limit(9, 60, FIXED)), period)))


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        ({}, True),
        ({"starts_at": PERIOD.start + HOUR, "ends_at": PERIOD.start + 2 * HOUR}, True),
        ({"ends_at": PERIOD.start + HOUR}, True),
        ({"starts_at": PERIOD.end - HOUR}, True),
        ({"ends_at": PERIOD.start}, False),
        ({"starts_at": PERIOD.end}, False),
    ],
)
def test_a_multiplier_counts_if_it_was_in_force_in_the_period(times: dict[str, Any], counts: bool) -> None:
    grant(**times)
    assert (HAVE in said()) is counts
    assert HAD not in said()


def test_an_assignment_without_a_multiplier_is_no_doubt() -> None:
    grant("1")
    assert HAVE not in said()


def test_no_assignment_counts_where_the_project_finds_the_tiers() -> None:
    grant()
    with override_settings(RATELIMITER={"TIER_RESOLVER": "tests.identity.test_resolvers.tier_of"}):
        assert HAVE not in said()


@pytest.mark.parametrize(
    ("flag", "hours", "counts"), [(DELETION, 1, True), (CHANGE, 1, True), (ADDITION, 1, False), (DELETION, -1, False)]
)
def test_what_was_changed_or_deleted_since_is_not_known(flag: int, hours: int, counts: bool) -> None:
    log(flag, hours)
    assert (HAD in said()) is counts


def test_one_sentence_is_enough() -> None:
    grant()
    log(DELETION, 1)
    assert HAVE in said()
    assert HAD not in said()


def log(flag: int, hours: int) -> None:
    LogEntry.objects.create(
        user=User.objects.create(username="ada"),
        content_type=ContentType.objects.get_for_model(TierAssignment),
        object_id="1",
        object_repr="x",
        action_flag=flag,
        action_time=stored(PERIOD.start + hours * HOUR),
    )


def test_the_command_says_it_too() -> None:
    Rule.objects.create(slug="search", name="Search", partition_by=["user"], mode="shadow")
    record(START, {"a": [9], "b": [20]})
    day = localtime(START).date()
    assert HAVE not in advise("search")
    during_attack = stored(START - timedelta(days=2) + timedelta(minutes=30))  # START can be midnight
    row = grant(starts_at=during_attack - 30 * HOUR, ends_at=during_attack)
    assert HAVE not in advise("search", "--period", str(day))
    assert HAVE in advise("search", "--period", str(day), "--attack", str(day - timedelta(days=2)))
    row.delete()
    grant()
    assert HAVE in advise("search")
    assert HAVE in json.loads(advise("search", "--json"))["notes"][0]


def advise(*arguments: str) -> str:
    out = StringIO()
    call_command("ratelimit", "advise", *arguments, stdout=out)
    return out.getvalue()
