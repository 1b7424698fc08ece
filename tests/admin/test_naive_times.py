"""Operators' pages of a project without USE_TZ: they open, and no moment on them is hours away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse
from django.utils.formats import date_format

from django_ratelimiter.models import AccessEntry, Tier, TierAssignment, TopPartition, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.times import aware
from tests.forecast.traffic import record
from tests.making import MakeRule, client_of

from .pages import BrowserForm

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]

ALL = ("view_rule", "view_usage_report", "view_tierassignment", "unblock_caller", "view_accessentry", "reveal_caller",
       "add_tierassignment", "change_rule", "view_rulesetversion")  # fmt: skip


@pytest.fixture(autouse=True)
def naive() -> Iterator[None]:
    """Times as this project's settings have them: of a clock far from that of the machine's UTC."""
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Kolkata"):
        connection.close()  # knows the time zone that it was opened with
        yield
    connection.close()


@pytest.fixture
def blocked(make_rule: MakeRule) -> User:
    """A user whom a rule blocks for a quarter of an hour at most, with a tier until tomorrow."""
    tier = Tier.objects.create(slug="gold", name="Gold", rank=1)
    user = User.objects.create_user("ann")
    tomorrow = datetime.now() + timedelta(days=1)  # noqa: DTZ005  as Django has it then
    TierAssignment.objects.create(tier=tier, user=user, multiplier=1, ends_at=tomorrow, reason="until tomorrow")
    AccessEntry.objects.create(action="deny", kind="ip", value="192.0.2.7", expires_at=tomorrow)
    make_rule("hourly", quota=1, limit={"window_seconds": 900}, partition_by=["user"])
    cache.invalidate()
    client = client_of(user)
    assert [client.get("/hello/").status_code for _ in range(2)] == [200, 429]
    Client().get("/hello/", REMOTE_ADDR="192.0.2.7")
    return user


def near(text: str, page: str) -> bool:
    """Whether the page names a moment of the next twenty minutes by the project's clock, before which stands `text`."""
    begin = datetime.now()  # noqa: DTZ005
    moments = (begin + timedelta(minutes=minute) for minute in range(-1, 21))
    return any(f"{text}{date_format(moment, 'DATETIME_FORMAT')}" in page for moment in moments)


def test_the_page_that_explains(blocked: User, operator: Callable[..., Client]) -> None:
    client = operator(*ALL)
    response = client.post(reverse("admin:django_ratelimiter_explain"), {"path": "/hello/", "user": "ann"})
    page = " ".join(response.content.decode().split())
    assert "Rejected with status 429 by hourly." in page
    assert near("blocked until ", page)
    assert "Gold, assigned to the user ann, until " in page


def test_a_caller_s_page(blocked: User, operator: Callable[..., Client]) -> None:
    client = operator(*ALL)
    response = client.post(reverse("admin:django_ratelimiter_caller"), {"kind": "user", "value": "ann"}, follow=True)
    page = " ".join(response.content.decode().split())
    assert near("until ", page)
    assert "hourly" in page
    [url] = [url for name, url, _text in response.context["links"] if name == "more"]
    sent = BrowserForm(client.get(url).content.decode()).sent
    assert client.post(url, sent).status_code == 302
    day = datetime.fromisoformat(sent["ends_at_0"][0])
    assert TierAssignment.objects.get(multiplier=2).ends_at == day + timedelta(days=1)


def yesterday_at_nine() -> datetime:
    """A moment by the clock of the project, as its models have it."""
    return datetime.combine(datetime.now().date() - timedelta(days=1), time(9))  # noqa: DTZ005


def test_a_report_has_the_project_s_clock(operator: Callable[..., Client]) -> None:
    for ago in range(1, 6):
        start = yesterday_at_nine() - timedelta(days=ago - 1)
        row = {"rule_slug": "search", "granularity": "hour", "start": start, "allowed": 700 - ago}
        UsageBucket.objects.create(**row)
        TopPartition.objects.create(**row, partition="x" * 22)
    client, reports = operator(*ALL), reverse("admin:django_ratelimiter_usagebucket_changelist")
    hour = f"{date_format(yesterday_at_nine(), 'j M')}, 09:00\u201310:00"
    assert hour in client.get(f"{reports}rule/", {"period": "7d", "rule": "search"}).content.decode()


def test_a_forecast_has_the_project_s_clock(make_rule: MakeRule, operator: Callable[..., Client]) -> None:
    rule = make_rule("search", quota=10, limit={"window_seconds": 60}, partition_by=["user"])
    record(aware(yesterday_at_nine()), {"aaa": [40]}, rule="search", tier="")
    client = operator(*ALL, "view_rulelimit", "change_rulelimit")
    page = reverse("admin:django_ratelimiter_rule_change", args=[rule.pk])
    response = client.get(page, {"_forecast": "1", "forecast-period": yesterday_at_nine().date().isoformat()})
    first = response.context["forecast"]["found"].tally.top[0].first
    assert aware(yesterday_at_nine()) < first < aware(yesterday_at_nine()) + timedelta(minutes=1)
    assert f"the first {date_format(yesterday_at_nine(), 'DATETIME_FORMAT')}" in response.content.decode()
    midnight = datetime.combine(yesterday_at_nine(), time())
    assert date_format(midnight, "DATETIME_FORMAT") in response.content.decode()


def test_the_list_of_rejections_has_the_project_s_clock(blocked: User, operator: Callable[..., Client]) -> None:
    rows: list[Any] = operator(*ALL).get(reverse("admin:django_ratelimiter_rejections")).context["rows"]
    begin = datetime.now()  # noqa: DTZ005
    clocks = {(begin - timedelta(seconds=second)).strftime("%H:%M:%S") for second in range(120)}
    assert {row["at_text"][-8:] for row in rows} <= clocks
