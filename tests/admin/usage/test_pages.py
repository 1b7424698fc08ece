"""Reports beside totals: one rule, callers, the period before, all of it as data, and the top callers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, TopCaller, TopPartition, UsageBucket, UsageTotal
from django_ratelimiter.rules import cache, inline
from django_ratelimiter.usage.reports.coverage import DAY, HOUR
from django_ratelimiter.usage.reports.report import Report, TopPartitionRow
from django_ratelimiter.usage.reports.totals import last, month
from django_ratelimiter.usage.times import Granularity, floor, now, stored

from ...test_unreachable import unreachable
from ..pages import shown, text_of
from .test_admin import REPORT, lines

pytestmark = pytest.mark.django_db

RULE = f"{REPORT}rule/?rule=search"
TABLES = ("totals", "series", "top")


def count(ago: timedelta, rule: str = "search", tier: str = "free", **figures: Any) -> None:
    """Usage of so long ago, in its minute, its hour and its day."""
    figures.setdefault("units", figures.get("allowed", 0))
    for granularity in Granularity:
        UsageBucket.objects.create(
            rule_slug=rule, tier_slug=tier, granularity=granularity, start=stored(start_of(ago, granularity)), **figures
        )


def start_of(ago: timedelta, granularity: Granularity) -> datetime:
    return floor(now() - ago, granularity, timezone.get_default_timezone())


def weigh(ago: timedelta, partition: str, allowed: int, rejected: int, rule: str = "search") -> None:
    """A heavy partition of so long ago, in its hour and its day."""
    for granularity in (Granularity.HOUR, Granularity.DAY):
        at = {"granularity": granularity, "start": stored(start_of(ago, granularity))}
        row, _created = TopPartition.objects.get_or_create(rule_slug=rule, partition=partition, **at)
        row.allowed, row.rejected = row.allowed + allowed, row.rejected + rejected
        row.save()


class TestOneRule:
    def test_only_this_one(self, staff: Client) -> None:
        Rule.objects.create(slug="search", name="Search the catalogue", mode="enforce")
        count(2 * HOUR, allowed=3, rejected=1)
        count(2 * HOUR, tier="", allowed=5)
        count(2 * HOUR, rule="other", allowed=100)
        response = staff.get(RULE)
        assert "Usage of “Search the catalogue”" in text_of(response)
        assert [row[1:3] for row in lines(response)] == [
            ["Tier", "Requests"],
            ["no tier", "5"],
            ["free", "4"],
            ["9", "8"],
        ]

    def test_only_one_tier(self, staff: Client) -> None:
        count(2 * HOUR, allowed=3)
        count(2 * HOUR, tier="", allowed=5)
        for page in (f"{REPORT}?", f"{RULE}&"):
            assert lines(staff.get(f"{page}tier=free"))[-1][1] == "3"
            response = staff.get(f"{page}tier=")
            assert lines(response)[-1][1] == "5"
            assert "Only the tier no tier." in text_of(response)

    def test_links_keep_the_period(self, staff: Client) -> None:
        count(2 * HOUR, allowed=3)
        page = shown(staff.get(f"{REPORT}?period=7d&nonsense=1"))
        [link] = re.findall(r'href="([^"]*)">search</a>', page)
        assert link == f"{REPORT}rule/?period=7d&rule=search"
        page = shown(staff.get(link))
        assert 'href="?rule=search&period=30d"' in page
        assert f'href="{REPORT}?period=7d"' in page
        assert f'href="{REPORT}rule/?period=7d&rule=search&tier=free"' in page


class TestThePeriodBefore:
    def test_change(self, staff: Client) -> None:
        count(60 * HOUR, allowed=1)
        count(30 * HOUR, allowed=40)
        count(30 * HOUR, tier="gone", allowed=10)
        count(30 * HOUR, tier="less", allowed=8)
        count(3 * HOUR, allowed=50)
        count(3 * HOUR, tier="new", allowed=25)
        count(3 * HOUR, tier="less", allowed=2)
        rows = {row[1]: row[2:4] for row in lines(staff.get(REPORT))}
        assert rows["free"] == ["50", "+25 %"]
        assert rows["new"] == ["25", "new"]
        assert rows["less"] == ["2", "\u221275 %"]
        assert lines(staff.get(REPORT))[-1][1:3] == ["77", "+33 %"]
        assert "+33 % compared with the period before" in text_of(staff.get(REPORT))

    def test_not_where_counting_began_later(self, staff: Client) -> None:
        count(30 * HOUR, allowed=40)
        count(3 * HOUR, allowed=50)
        assert "Change in requests" not in lines(staff.get(REPORT))[0]


class TestCallers:
    def test_the_top_callers(self, staff: Client) -> None:
        count(3 * HOUR, allowed=50)
        for ago in (2 * HOUR, 3 * HOUR):
            weigh(ago, "aaaa", 10, 1)
            weigh(ago + 9 * DAY, "old", 1_000, 1_000)
        weigh(2 * HOUR, "bbbb", 2, 15)
        weigh(2 * HOUR, "cccc", 5, 0)
        weigh(2 * HOUR, "dddd", 100, 0, rule="other")
        assert Report(last(DAY), "search").top_partitions == [
            TopPartitionRow("aaaa", 20, 2),
            TopPartitionRow("bbbb", 2, 15),
            TopPartitionRow("cccc", 5, 0),
        ]
        page = shown(staff.get(f"{RULE}&by=rejected"))
        table = page.partition('ratelimiter-top-callers" role="table">')[2].partition("</table>")[0]
        assert re.findall(r"<code>(.*?)</code>", table) == ["bbbb", "aaaa"]
        assert page.count('aria-current="true"') == 1


def file_of(client: Client, table: str, query: str) -> list[dict[str, str]]:
    """The rows of a table as a file."""
    response = client.get(f"{REPORT}{table}.csv?{query}")
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"] == f'attachment; filename="usage-{table}.csv"'
    return [*csv.DictReader(io.StringIO(response.content.decode()))]


class TestData:
    @pytest.fixture(autouse=True)
    def _usage(self) -> None:
        count(60 * HOUR, allowed=1)
        count(30 * HOUR, allowed=40, rejected=10)
        count(3 * HOUR, allowed=50, rejected=50, shadow_rejected=1, soft_exceeded=2, degraded=3)
        weigh(3 * HOUR, "aaaa", 10, 1)

    def test_totals(self, staff: Client) -> None:
        for each in UsageBucket.objects.values("granularity", "start", "allowed", "rejected", "shadow_rejected"):
            UsageTotal.objects.create(**each, exempt=7)
        assert "<dt>Exempt</dt><dd>7</dd>" in staff.get(f"{REPORT}?period=24h").content.decode()
        assert file_of(staff, "totals", "period=24h") == [
            {
                "rule_slug": "search",
                "tier_slug": "free",
                "requests": "101",
                "allowed": "50",
                "rejected": "50",
                "shadow_rejected": "1",
                "soft_exceeded": "2",
                "degraded": "3",
                "rejected_by_other": "0",
                "units": "",
                "rejection_rate": str(50 / 101),
                "requests_before": "50",
            }
        ]

    def test_top_callers(self, staff: Client) -> None:
        [row] = file_of(staff, "top", "period=7d&rule=search")
        assert [*row.values()] == ["aaaa", "11", "10", "1", "no", str(11 / 152), "", "aaaa"]

    def test_moments_are_in_utc(self, staff: Client) -> None:
        with timezone.override("Asia/Tokyo"):
            series = file_of(staff, "series", "period=1h")
        assert datetime.fromisoformat(series[0]["start"]) == last(HOUR).start
        assert series[0]["start"].endswith("Z")
        assert len(series) == 60

    def test_the_page_links_to_all_of_it(self, staff: Client) -> None:
        links = set(re.findall(rf'href="{REPORT}(\w+\.\w+)\?', shown(staff.get(f"{RULE}&period=7d"))))
        assert links == {f"{table}.csv" for table in TABLES}

    def test_other_files_do_not_exist(self, staff: Client) -> None:
        assert [staff.get(f"{REPORT}{name}").status_code for name in ("totals.json", "x.csv")] == [404, 404]

    def test_no_spreadsheet_takes_a_name_for_a_formula(self, staff: Client) -> None:
        for rule, tier in (("=1+1", "@x"), ("-1+1", "-1.5"), ("+1\t", "::1-\r")):
            count(3 * HOUR, rule=rule, tier=tier, allowed=1)
        found = sorted((row["rule_slug"], row["tier_slug"]) for row in file_of(staff, "totals", ""))
        assert found == [("'+1\\t", r"::1-\r"), ("'-1+1", "-1.5"), ("'=1+1", "'@x"), ("search", "free")]


class TestUnknownRules:
    def test_a_rule_without_usage_is_known(self, staff: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inline, "_registered", {})
        inline.register(inline.rule_of("code:shop", 5, 60, "ip"))
        Rule.objects.get_or_create(slug="search", defaults={"name": "Search"})
        for slug in ("search", "code:shop"):
            assert staff.get(f"{REPORT}rule/?rule={slug}").status_code == 200


PAGE = f"{REPORT}top-callers/"


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


@pytest.fixture
def ada() -> str:
    """Whose name is known."""
    who = User.objects.create_user("ada")
    return digest(f"user:{who.pk}")


def test_top_callers_are_those_of_this_month_with_share_and_trend(staff: Client) -> None:
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
    why = "Where a rule counts requests without this value by their address, these addresses are listed, too."
    assert why in text_of(staff.get(f"{PAGE}?identity=user"))
    by_address = text_of(staff.get(f"{PAGE}?identity=ip"))
    assert "By IP address" in by_address
    assert why not in by_address
    assert "heavy" not in text_of(staff.get(f"{PAGE}?period=last-month&identity=ip"))


def test_top_callers_have_names_only_for_who_may_see_them(operator: Callable[..., Client], ada: str) -> None:
    meet(ada, 5)
    meet("-" + 21 * "x", 3)
    reveals = operator("view_usage_report", "reveal_caller")
    assert [row["name"] for row in rows(reveals)[:1]] == [f"user: ada (id {User.objects.get(username='ada').pk})"]
    assert [row["caller"] for row in file_of(reveals, "top", "period=this-month&identity=user")] == [
        rows(reveals)[0]["name"],
        "'-" + 21 * "x",
    ]
    meet(ada, 5, start=last_month())
    with unreachable():  # Redis knows nothing about last month
        assert rows(reveals, "?period=last-month")[0]["name"] == rows(reveals)[0]["name"]
    Permission.objects.get(codename="reveal_caller").user_set.clear()
    assert "name" not in rows(reveals)[0] | rows(reveals, "?period=last-month")[0]
    written = f"'{ada}" if ada.startswith("-") else ada  # as any other text that a spreadsheet could take for a formula
    assert [row["caller"] for row in file_of(reveals, "top", "period=this-month&identity=user")] == [
        written,
        "'-" + 21 * "x",
    ]
    assert file_of(reveals, "top", "period=this-month") == []  # neither a rule nor an identity


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


def test_an_estimate_is_marked_and_a_small_one_is_few_and_comes_last(staff: Client) -> None:
    for who, figures in {"few": (64, 32), "many": (160, 48), "more": (1_600, 1_600)}.items():
        meet(who, *figures)
    TopCaller.objects.update(estimated=True)
    meet("exact", 12)
    found = [f"{row['partition']} {row['requests']} {row['rejected']} {'share' in row}" for row in rows(staff)]
    assert found == [
        "more about 3,200 about 1,600 True",
        "many about 208 few True",
        "exact 12 0 True",
        "few few few False",
    ]
    assert [row["partition"] for row in rows(staff, "?by=rejected")] == ["more", "many", "few"]
    assert "many: about 160 allowed, few rejected" in shown(staff.get(PAGE))
    found = [" ".join([*each.values()][1:5]) for each in file_of(staff, "top", "period=this-month&identity=user")[1:]]
    assert found == ["208 160  yes", "12 12 0 no", "   yes"]
