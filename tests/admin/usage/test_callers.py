"""The page of exact usage: every caller of a rule in a month or a billing period, sorted, by day, and as a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.identity import digest
from django_ratelimiter.models import CallerUsage, Rule, TopPartition
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.reports.totals import last
from django_ratelimiter.usage.times import now
from django_ratelimiter.values.digests import alias_of

from ..pages import text_of
from .test_admin import REPORT
from .test_pages import count as bucket
from .test_pages import file_of, weigh

pytestmark = pytest.mark.django_db

PAGE = f"{REPORT}callers/"
HOUR = datetime(2026, 10, 14, 23, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _november(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    monkeypatch.setattr(timezone, "now", lambda: datetime(2026, 11, 20, 12, 30, tzinfo=UTC))


@pytest.fixture
def rule() -> Rule:
    return Rule.objects.create(slug="orders", name="Orders", partition_by=["user"], exact_usage=True)


@pytest.fixture
def ann(rule: Rule) -> str:
    """Two users and an address, around the beginning of the billing period on the 15th, and of October."""
    ann, bob = (str(User.objects.create_user(name).pk) for name in ("ann", "bob"))
    count("user", ann, HOUR, allowed=3, units=7, rejected=1)
    count("user", ann, HOUR + timedelta(hours=1), allowed=4, units=4)
    count("user", bob, HOUR + timedelta(days=1), allowed=5, units=5, rejected_by_other=2)
    count("ip", "2001:db8::/64", HOUR - timedelta(days=13), allowed=9, units=9)
    return ann


def count(identity: str, value: str, hour: datetime, rule: str = "orders", **counts: int) -> None:
    CallerUsage.objects.create(rule_slug=rule, identity=identity, value=value, hour=hour, **counts)


def rows(response: Any) -> list[list[str]]:
    """The names and figures of the callers, as the page shows them."""
    shown = response.context["callers"]
    return [[row["name"], *[row[name] for name in ("requests", *CallerUsage.COUNTS)]] for row in shown]


@pytest.fixture
def seer(operator: Callable[..., Client]) -> Client:
    return operator("view_usage_report", "reveal_caller", "view_tierassignment")


def test_month_shows_every_caller_by_units(seer: Client, ann: str) -> None:
    response = seer.get(PAGE, {"period": "last-month"})
    assert rows(response) == [
        [f"user: ann (id {ann})", "8", "7", "1", "0", "11"],
        ["IP address: 2001:db8::/64", "9", "9", "0", "0", "9"],
        [f"user: bob (id {int(ann) + 1})", "7", "5", "0", "2", "5"],
    ]
    assert response.context["together"]["units"] == "25"
    assert "not told apart" not in text_of(response)
    assert rows(seer.get(PAGE)) == []  # of the last 24 hours


def test_callers_are_sorted_by_any_column(seer: Client, ann: str) -> None:
    for order, first in {"requests": "IP", "rejected": "user: ann", "rejected_by_other": "user: bob"}.items():
        assert rows(seer.get(PAGE, {"period": "last-month", "by": order}))[0][0].startswith(first)


def test_billing_period_begins_on_its_day(seer: Client, ann: str, settings: Any) -> None:
    first, second = rows(seer.get(PAGE, {"day": "15", "period": "last-month"}))
    assert (first[0][:9], first[1], second[0][:9], second[1]) == ("user: bob", "7", "user: ann", "4")
    count("user", ann, datetime(2026, 11, 14, 23, tzinfo=UTC), allowed=1, units=1)
    shown = {"last-month 15": "10", "this-month 15": "0", "last-month 31": "21", "this-month 31": "1"}
    for (period, day), allowed in ((name.split(), allowed) for name, allowed in shown.items()):
        assert seer.get(PAGE, {"day": day, "period": period}).context["together"]["allowed"] == allowed
    settings.TIME_ZONE = "Europe/Berlin"  # where the 15th begins two hours earlier
    assert rows(seer.get(PAGE, {"day": "15", "period": "last-month"}))[0][1:] == ["8", "7", "1", "0", "11"]
    for odd in ("0", "32", "x", "9" * 400, "²"):
        assert seer.get(PAGE, {"day": odd}).status_code == 200


def test_caller_has_a_chart_by_day(seer: Client, ann: str) -> None:
    [row, *_] = seer.get(PAGE, {"period": "last-month"}).context["callers"]
    response = seer.get(PAGE + row["day_url"])
    assert alias_of(parse_qs(row["day_url"][1:])["caller"][0]) == digest(f"user:{ann}")
    assert response.context["chosen"] == f"user: ann (id {ann})"
    labels = [bar.label for bar in response.context["chart"].bars if bar.segments]
    assert labels == ["14 Oct: 3 allowed, 1 rejected", "15 Oct: 4 allowed, 0 rejected"]


def test_file_has_every_caller(seer: Client, ann: str) -> None:
    found = file_of(seer, "callers", "period=last-month")
    assert [row["value"] for row in found] == [ann, "2001:db8::/64", str(int(ann) + 1)]
    assert found[0] == {
        "rule_slug": "orders", "caller": f"user: ann (id {ann})", "identity": "user", "value": ann,
        "allowed": "7", "rejected": "1", "rejected_by_other": "0", "units": "11",
    }  # fmt: skip


def test_file_of_many_callers_takes_as_many_queries_as_of_few(seer: Client, ann: str) -> None:
    url, made = reverse("admin:django_ratelimiter_usage_data", args=["callers"]), []
    for number in (0, 3_000):
        same = {"rule_slug": "orders", "identity": "user", "hour": HOUR}
        CallerUsage.objects.bulk_create(CallerUsage(**same, value=f"-{each}") for each in range(number))
        with CaptureQueriesContext(connection) as queries:
            content = seer.get(url, {"period": "last-month"}).content
        assert content.count(b"orders,") == 3 + number
        made.append(len(queries))
    assert made[0] == made[1]


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="the plan is in SQLite's words")
def test_usage_of_other_rules_and_hours_is_not_read(seer: Client, ann: str) -> None:
    """Of millions of rows: the index begins with all that a page knows of its own."""
    bucket(timedelta(hours=2), "orders", "7", allowed=9)
    for url in (PAGE, f"{REPORT}rule/"):
        with CaptureQueriesContext(connection) as queries:
            assert seer.get(url, {"period": "this-month", "rule": "orders"}).status_code == 200
        asked = [each["sql"] for each in queries if "callerusage" in each["sql"]]
        assert asked
        for sql in asked:
            with connection.cursor() as cursor:
                plan = str(cursor.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())
            assert re.search(r"\(identity=\? (AND value=\? )?AND rule_slug=\? AND hour>\? AND hour<\?\)", plan), plan


def test_callers_have_names_only_for_who_may_see_them(seer: Client, ann: str) -> None:
    shown = digest(f"user:{ann}")
    with override_settings(RATELIMITER={"REVEAL": ["ip"]}):
        names = [name for name, *_ in rows(seer.get(PAGE, {"period": "last-month"}))]
    assert names[:2] == [shown, "IP address: 2001:db8::/64"]
    User.objects.get(username="operator").user_permissions.remove(Permission.objects.get(codename="reveal_caller"))
    assert rows(seer.get(PAGE, {"period": "last-month"}))[0][0] == shown
    found = file_of(seer, "callers", "period=last-month")
    assert {row["value"] for row in found} == {""}


def test_page_says_that_callers_were_not_told_apart(seer: Client, rule: Rule) -> None:
    count("", "", now() - timedelta(days=1), allowed=5, units=5)
    count("", "A" * 22, now() - timedelta(days=1), allowed=2, units=2)
    response = seer.get(PAGE, {"period": "this-month"})
    assert "too many callers waited" in text_of(response)
    assert [name for name, *_ in rows(response)] == ["not told apart", "A" * 22]


def test_page_without_a_rule_with_exact_usage_does_not_exist(seer: Client) -> None:
    assert seer.get(PAGE).status_code == 404
    pages = (REPORT, f"{REPORT}top-callers/")
    assert ["Usage per caller" in text_of(seer.get(each)) for each in pages] == [False, False]
    Rule.objects.create(slug="orders", name="Orders", partition_by=["user"], exact_usage=True)
    assert ["Usage per caller" in text_of(seer.get(each)) for each in pages] == [True, True]
    for odd in ({"by": "pk"}, {"rule": "a\0"}):
        assert seer.get(PAGE, odd).status_code == 404


def test_top_callers_of_the_rule_are_exact(seer: Client, rule: Rule) -> None:
    """Never "few", whatever the estimates are."""
    for value in ("7", "8"):
        hour = now().replace(minute=0) - timedelta(hours=2)
        bucket(timedelta(hours=2), "orders", value, allowed=9)
        weigh(timedelta(hours=2), digest(f"user:{value}"), 16, 0, "orders")
        count("user", value, hour, allowed=int(value), rejected=9 - int(value), units=int(value))
    TopPartition.objects.update(estimated=True)
    found = Report(last(timedelta(hours=24)), "orders", by_rejected=True).top_partitions
    assert [row.partition for row in found] == [digest("user:7"), digest("user:8")]
    assert [row.in_words()["allowed"] for row in found] == ["7", "8"]
    CallerUsage.objects.all().delete()
    found = Report(last(timedelta(hours=24)), "orders").top_partitions
    assert [row.in_words()["allowed"] for row in found] == ["few", "few"]
