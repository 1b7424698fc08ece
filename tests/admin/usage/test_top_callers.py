"""The page of the top callers over all rules, its files, and the way to it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, TopCaller, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.reports.totals import month
from django_ratelimiter.usage.times import Granularity, floor, now, stored

from ...test_unreachable import unreachable
from ..pages import shown, text_of
from .test_admin import REPORT

pytestmark = pytest.mark.django_db

PAGE = f"{REPORT}top-callers/"
HOUR = timedelta(hours=1)


def this_hour() -> Any:
    """The start of the hour of the last whole minute, with which reports end; or of the month, if that is later."""
    whole = floor(now() - timedelta(minutes=1), Granularity.HOUR, timezone.get_default_timezone())
    return max(whole, month(timezone.localtime()).start)


def last_month() -> Any:
    return month(timezone.localtime()).start - HOUR


def meet(partition: str, allowed: int, rejected: int = 0, identity: str = "user", start: Any = None) -> None:
    """Requests of a caller in one hour, and those of the day and of all rules that it belongs to."""
    start = start or this_hour()
    for granularity in (Granularity.HOUR, Granularity.DAY):
        at = {
            "granularity": granularity,
            "start": stored(floor(start, granularity, timezone.get_default_timezone())),
        }
        for model, of in (
            (TopCaller, {"identity": identity, "partition": partition}),
            (UsageBucket, {"rule_slug": "search"}),
        ):
            row, _created = model.objects.get_or_create(**of, **at)  # type: ignore[attr-defined]
            row.allowed, row.rejected = row.allowed + allowed, row.rejected + rejected
            row.tail = getattr(partition, "tail", "")
            row.save()


def rows(client: Client, query: str = "") -> list[dict[str, str]]:
    context = client.get(f"{PAGE}{query}").context
    wanted = ("name", "partition", "requests", "rejected", "share", "change")
    return [{name: row[name] for name in wanted if row[name]} for row in context["top_partitions"]]


def table(client: Client, query: str = "") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(client.get(f"{REPORT}top.csv?{query}").content.decode())))


@pytest.fixture
def ada() -> str:
    """Whose name is known."""
    who = User.objects.create_user("ada")
    return digest(f"user:{who.pk}")


def test_those_of_this_month_with_share_and_trend(staff: Client) -> None:
    meet("old", 40, start=last_month() - 40 * 24 * HOUR)
    meet("heavy", 60, start=last_month() - 24 * HOUR * (timezone.localtime().day - 1))
    for who, figures in {"heavy": (90, 0), "rejected": (10, 60), "new": (40, 0)}.items():
        meet(who, *figures)
    meet("192.0.2.7", 500, identity="ip")
    found = rows(staff)
    assert [(row["partition"], row["requests"], row["rejected"]) for row in found] == [
        ("heavy", "90", "0"),
        ("rejected", "70", "60"),
        ("new", "40", "0"),
    ]
    assert [row["share"] for row in found] == ["12.9 %", "10.0 %", "5.7 %"]
    assert [row["change"] for row in found[1:]] == ["new", "new"]
    assert [row["partition"] for row in rows(staff, "?by=rejected")] == ["rejected"]
    assert [row["partition"] for row in rows(staff, "?identity=ip")] == ["192.0.2.7"]
    assert "By IP address" in text_of(staff.get(f"{PAGE}?identity=ip"))
    assert "heavy" not in text_of(staff.get(f"{PAGE}?period=last-month&identity=ip"))


def test_names_only_for_who_may_see_them(operator: Callable[..., Client], ada: str) -> None:
    meet(ada, 5)
    meet("-" + 21 * "x", 3)
    reveals = operator("view_usage_report", "reveal_caller")
    assert [row["name"] for row in rows(reveals)[:1]] == [f"user: ada (id {User.objects.get(username='ada').pk})"]
    assert [row["caller"] for row in table(reveals, "period=this-month&identity=user")] == [
        rows(reveals)[0]["name"],
        "'-" + 21 * "x",
    ]
    meet(ada, 5, start=last_month())
    with unreachable():  # Redis knows nothing about last month
        assert rows(reveals, "?period=last-month")[0]["name"] == rows(reveals)[0]["name"]
    Permission.objects.get(codename="reveal_caller").user_set.clear()
    assert "name" not in rows(reveals)[0] | rows(reveals, "?period=last-month")[0]
    assert [row["caller"] for row in table(reveals, "period=this-month&identity=user")] == [ada, "'-" + 21 * "x"]
    assert table(reveals, "period=this-month") == []  # neither a rule nor an identity


@override_settings(RATELIMITER={"REVEAL": ["user", "header:X-Org"]})
def test_control_characters_of_callers_are_written_out(admin_client: Client) -> None:
    """On pages and in CSV; they would turn the direction of the text around them."""
    name = "ann\u202e\u2066\x9b"
    ann, partition = User.objects.create(username=name), f"header:X-Org={name}"
    meet(digest(f"user:{ann.pk}"), 5)
    with cache.editing():
        Rule.objects.create(slug="org", name="Org", partition_by=["header:X-Org"])
    caller, explain = [reverse(f"admin:django_ratelimiter_{page}") for page in ("caller", "explain")]
    for response in (
        admin_client.get(PAGE),
        admin_client.get(f"{REPORT}top.csv?period=this-month&identity=user"),
        admin_client.get(f"{caller}?{urlencode({'kind': 'user', 'value': f'id:{ann.pk}'})}"),
        admin_client.get(f"{caller}?{urlencode({'kind': 'partition', 'value': partition})}"),
        admin_client.post(explain, {"path": "/", "method": "GET", "identities": partition}),
    ):
        assert r"ann\u202e\u2066\u009b" in response.content.decode(), response.request


def test_of_nothing_and_of_a_wrong_period(staff: Client) -> None:
    assert "None are known in this period." in text_of(staff.get(PAGE))
    assert staff.get(f"{PAGE}?identity=%00").status_code == 404


def test_an_estimate_is_marked_and_a_small_one_is_few_and_comes_last(staff: Client) -> None:
    for who, figures in {"few": (64, 32), "many": (160, 48), "more": (1_600, 1_600)}.items():
        meet(who, *figures)
    TopCaller.objects.update(estimated=True)
    meet("exact", 12)
    found = [f"{row['partition']} {row['requests']} {row['rejected']} {'share' in row}" for row in rows(staff)]
    assert found == ["more ≈ 3,200 ≈ 1,600 True", "many ≈ 208 few True", "exact 12 0 True", "few few few False"]
    assert [row["partition"] for row in rows(staff, "?by=rejected")] == ["more", "many", "few"]
    assert "many: ≈ 160 allowed, few rejected" in shown(staff.get(PAGE))
    found = [" ".join([*each.values()][1:5]) for each in table(staff, "period=this-month&identity=user")[1:]]
    assert found == ["208 160  yes", "12 12 0 no", "   yes"]
    assert staff.get(f"{REPORT}top.json?period=this-month&identity=user").json()["top"][1]["estimated"] is True
