"""What the reports say beside totals: one rule, its callers, busy hours, the period before, and all of it as data."""

from __future__ import annotations

import csv
import io
import re
from datetime import datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from django_ratelimiter.models import Rule, TopPartition, UsageBucket
from django_ratelimiter.rules import inline
from django_ratelimiter.usage.reports.coverage import DAY, HOUR
from django_ratelimiter.usage.reports.report import Report, TopPartitionRow
from django_ratelimiter.usage.reports.totals import last
from django_ratelimiter.usage.times import Granularity, floor, now, stored

from ..pages import shown, text_of
from .test_admin import REPORT, lines

pytestmark = pytest.mark.django_db

RULE = f"{REPORT}rule/?rule=search"
TABLES = ("totals", "series", "top")


def count(ago: timedelta, rule: str = "search", tier: str = "free", **figures: Any) -> None:
    """Usage of so long ago, in its minute, its hour and its day."""
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
        assert 'href="?period=30d&rule=search"' in page
        assert f'href="{REPORT}?period=7d"' in page
        assert f'href="{REPORT}rule/?period=7d&rule=search&tier=free"' in page

    def test_none_named(self, staff: Client) -> None:
        assert staff.get(f"{REPORT}rule/").status_code == 404

    def test_a_rule_that_nobody_met(self, staff: Client) -> None:
        Rule.objects.create(slug="search", name="Search")
        count(2 * HOUR, rule="other", allowed=1)
        assert "No request matched a rule in this period" in text_of(staff.get(RULE))

    @pytest.mark.parametrize("slug", ["a\0", "\0", "x" * 5_000, "\U0001f600", "a\n", "\ud800"])
    def test_what_no_rule_is_called(self, staff: Client, slug: str) -> None:
        """Not every database takes every text."""
        count(2 * HOUR, allowed=3)
        query = urlencode({"rule": slug, "tier": slug, "by": slug}, errors="surrogatepass")
        response = staff.get(f"{REPORT}?{query}")  # of this tier, and all rules
        assert response.status_code == (404 if "\0" in slug else 200)
        assert "\0" in slug or "No request matched a rule" in text_of(response)
        for page in ("rule/", *(f"{table}.csv" for table in TABLES)):
            assert staff.get(f"{REPORT}{page}?{query}").status_code == 404

    def test_hostile_names(self, staff: Client) -> None:
        slug = '"><script>&=/?'
        count(2 * HOUR, rule=slug, tier=slug, allowed=7)
        page = staff.get(REPORT)
        assert slug not in page.content.decode()
        [link] = re.findall(r'scope="row"><a href="([^"]*)"', page.content.decode())
        response = staff.get(unescape(link))
        assert lines(response)[-1][1] == "7"
        assert slug not in response.content.decode()


class TestThePeriodBefore:
    def test_change(self, staff: Client) -> None:
        count(60 * HOUR, allowed=1)
        count(30 * HOUR, allowed=40)
        count(30 * HOUR, tier="gone", allowed=10)
        count(3 * HOUR, allowed=50)
        count(3 * HOUR, tier="new", allowed=25)
        rows = {row[1]: row[2:4] for row in lines(staff.get(REPORT))}
        assert rows["free"] == ["50", "+25 %"]
        assert rows["new"] == ["25", "new"]
        assert lines(staff.get(REPORT))[-1][1:3] == ["75", "+50 %"]
        assert "+50 % compared with the period before" in text_of(staff.get(REPORT))

    def test_fewer(self, staff: Client) -> None:
        count(60 * HOUR, allowed=1)
        count(30 * HOUR, allowed=4_000)
        count(3 * HOUR, allowed=1_000)
        assert "\u221275 %" in lines(staff.get(REPORT))[1]

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


class TestData:
    @pytest.fixture(autouse=True)
    def _usage(self) -> None:
        count(60 * HOUR, allowed=1)
        count(30 * HOUR, allowed=40, rejected=10)
        count(3 * HOUR, allowed=50, rejected=50, shadow_rejected=1, soft_exceeded=2, degraded=3)
        weigh(3 * HOUR, "aaaa", 10, 1)

    @pytest.mark.parametrize("table", TABLES)
    def test_both_say_the_same(self, staff: Client, table: str) -> None:
        query = "?period=7d&rule=search"
        told = staff.get(f"{REPORT}{table}.json{query}").json()[table]
        response = staff.get(f"{REPORT}{table}.csv{query}")
        assert response["Content-Type"] == "text/csv; charset=utf-8"
        assert response["Content-Disposition"] == f'attachment; filename="usage-{table}.csv"'
        rows = list(csv.DictReader(io.StringIO(response.content.decode())))
        assert rows
        texts = {"None": "", "False": "no"}
        assert rows == [{name: texts.get(str(value), str(value)) for name, value in row.items()} for row in told]

    def test_totals(self, staff: Client) -> None:
        told = staff.get(f"{REPORT}totals.json?period=24h").json()
        assert told["together"]["requests"] == 101
        assert told["totals"] == [
            {
                "rule_slug": "search",
                "tier_slug": "free",
                "requests": 101,
                "allowed": 50,
                "rejected": 50,
                "shadow_rejected": 1,
                "soft_exceeded": 2,
                "degraded": 3,
                "rejection_rate": 50 / 101,
                "requests_before": 50,
            }
        ]

    def test_moments_are_in_utc(self, staff: Client) -> None:
        with timezone.override("Asia/Tokyo"):
            told = staff.get(f"{REPORT}series.json?period=1h").json()
        assert datetime.fromisoformat(told["start"]) == datetime.fromisoformat(told["series"][0]["start"])
        assert told["start"].endswith("Z")
        assert len(told["series"]) == 60

    def test_the_page_links_to_all_of_it(self, staff: Client) -> None:
        links = set(re.findall(rf'href="{REPORT}(\w+\.\w+)\?', shown(staff.get(f"{RULE}&period=7d"))))
        assert links == {f"{table}.{kind}" for table in TABLES for kind in ("csv", "json")}

    def test_no_spreadsheet_takes_a_name_for_a_formula(self, staff: Client) -> None:
        for rule, tier in (("=1+1", "@x"), ("-1+1", "-1.5"), ("+1\t", "::1-\r")):
            count(3 * HOUR, rule=rule, tier=tier, allowed=1)
        rows = list(csv.DictReader(io.StringIO(staff.get(f"{REPORT}totals.csv").content.decode())))
        found = sorted((row["rule_slug"], row["tier_slug"]) for row in rows)
        assert found == [("'+1\\t", r"::1-\r"), ("'-1+1", "-1.5"), ("'=1+1", "'@x"), ("search", "free")]


class TestUnknownRules:
    def test_a_rule_without_usage_is_known(self, staff: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inline, "_registered", {})
        inline.register(inline.rule_of("code:shop", 5, 60, "ip"))
        Rule.objects.get_or_create(slug="search", defaults={"name": "Search"})
        for slug in ("search", "code:shop"):
            assert staff.get(f"{REPORT}rule/?rule={slug}").status_code == 200
