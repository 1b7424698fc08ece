"""Operators' pages of a project without USE_TZ: they open, and no moment on them is hours away."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse
from django.utils.formats import date_format

from django_ratelimiter.models import AccessEntry, Tier, TierAssignment
from django_ratelimiter.rules import cache
from tests.doors.conftest import MakeRule, make_rule

__all__ = ["make_rule"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.explain.urls")]

ALL = ("view_rule", "view_usage_report", "view_tierassignment", "unblock_caller", "grant_caller", "view_accessentry",
       "reveal_caller", "change_rule", "view_rulesetversion")  # fmt: skip


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
    client = Client()
    client.force_login(user)
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
    day = (datetime.now() + timedelta(days=2)).date()  # noqa: DTZ005
    sent = {"act": "more", "multiplier": "3", "until": day.isoformat(), "reason": "sale"}
    token = re.search(r'name="token" value="([^"]*)"', page)
    assert token
    press = client.post(response.redirect_chain[-1][0], {**sent, "token": token[1]}, follow=True)
    assert press.status_code == 200
    ends = TierAssignment.objects.get(multiplier=3).ends_at
    assert ends == datetime.combine(day + timedelta(days=1), time())


PAGES = ("refusals", "history", "rule_changelist", "usagebucket_changelist", "accessentry_changelist",
         "tierassignment_changelist")  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_the_other_pages_open(blocked: User, operator: Callable[..., Client], name: str) -> None:
    assert operator(*ALL).get(reverse(f"admin:django_ratelimiter_{name}")).status_code == 200


def test_the_list_of_rejections_has_the_project_s_clock(blocked: User, operator: Callable[..., Client]) -> None:
    rows: list[Any] = operator(*ALL).get(reverse("admin:django_ratelimiter_refusals")).context["rows"]
    assert {row.is_access for row in rows} == {True, False}
    begin = datetime.now()  # noqa: DTZ005
    clocks = {(begin - timedelta(seconds=second)).strftime("%H:%M:%S") for second in range(120)}
    assert {row.at_text[-8:] for row in rows} <= clocks


def test_the_overview(blocked: User, operator: Callable[..., Client]) -> None:
    response = operator(*ALL).get(reverse("admin:app_list", args=["django_ratelimiter"]))
    assert response.status_code == 200
    assert django_settings.TIME_ZONE == "Asia/Kolkata"
