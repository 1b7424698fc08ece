"""The report in the admin: who sees it, what it says, and what it says when there is nothing to say."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone, translation

from django_ratelimiter.models import Rule, Tier, UsageBatch, UsageBucket
from django_ratelimiter.usage.times import Granularity, floor, now, stored

from ..pages import shown, text_of

pytestmark = pytest.mark.django_db

REPORT = "/admin/django_ratelimiter/usagebucket/"


def add(minutes_ago: int, rule: str = "search", tier: str = "free", **figures: int) -> UsageBucket:
    minute = floor(now(), Granularity.MINUTE, timezone.get_current_timezone()) - timedelta(minutes=minutes_ago)
    figures.setdefault("units", figures.get("allowed", 0))
    return UsageBucket.objects.create(rule_slug=rule, tier_slug=tier, start=stored(minute), **figures)


def lines(response: Any) -> list[list[str]]:
    """The cells of the table of totals, line by line."""
    table = response.content.decode().partition('ratelimiter-totals"')[2].partition("</table>")[0]
    return [
        [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", line, re.S)]
        for line in re.findall(r"<tr role=.*?</tr>", table, re.S)
    ]


class TestWhoMaySeeIt:
    def test_nobody_changes_counts(self, admin_client: Client) -> None:
        bucket = add(5, allowed=1)
        for path in ("add/", f"{bucket.pk}/change/", f"{bucket.pk}/delete/", f"{bucket.pk}/history/"):
            assert admin_client.post(REPORT + path, {"allowed": 5}).status_code == 404
        admin_client.post(REPORT, {"action": "delete_selected", "_selected_action": bucket.pk, "post": "yes"})
        assert UsageBucket.objects.get().allowed == 1

    def test_the_index_links_to_it(self, staff: Client) -> None:
        page = staff.get("/admin/").content.decode()
        assert REPORT in page
        assert f"{REPORT}add/" not in page


class TestTotals:
    def test_by_rule_and_tier_with_their_names(self, staff: Client) -> None:
        Rule.objects.create(slug="search", name="Search the catalogue", mode="enforce")
        Tier.objects.create(slug="free", name="Free of charge")
        add(5, allowed=1200, rejected=300)
        add(6, tier="", allowed=4)
        add(6, rule="gone", tier="gone too", rejected=1, allowed=1)
        title, *rows, together = lines(staff.get(REPORT))
        assert title == ["Rule", "Tier", "Requests", "Allowed", "Rejected", "Rejection rate"]
        assert rows == [
            ["gone", "gone too", "2", "1", "1", "50.0 %"],
            ["Search the catalogue", "no tier", "4", "4", "0", "0.0 %"],
            ["Search the catalogue", "Free of charge", "1,500", "1,200", "300", "20.0 %"],
        ]
        assert together == ["Total", "1,506", "1,205", "301", "20.0 %"]

    def test_shadow_and_soft_columns_only_where_there_is_something(self, staff: Client) -> None:
        add(5, allowed=6, rejected=1, shadow_rejected=3, soft_exceeded=2)
        title, _row, together = lines(staff.get(REPORT))
        assert title[3:7] == ["Allowed", "Beyond soft quota", "Rejected", "Would be rejected"]
        assert together == ["Total", "10", "6", "2", "1", "3", "10.0 %"]

    def test_columns_of_other_rules_and_of_units_only_where_there_is_something(self, staff: Client) -> None:
        add(5, allowed=6, rejected=1, rejected_by_other=3, units=42)
        add(6, rule="other", allowed=2)
        title, row, other, together = sorted(lines(staff.get(REPORT)), key=lambda line: line[0] == "Total")
        assert title[3:7] == ["Allowed", "Units", "Rejected", "Rejected by another rule"]
        assert (row[3:7], other[3:7]) in (
            (["6", "42", "1", "3"], ["2", "2", "0", "0"]),
            (["2", "2", "0", "0"], ["6", "42", "1", "3"]),
        )
        assert together[2:4] == ["8", ""]
        page = staff.get(f"{REPORT}rule/?rule=search").content.decode()
        assert "<dt>Units</dt><dd>42</dd>" in page
        assert "<dt>Rejected by another rule</dt><dd>3</dd>" in page

    def test_rules_link_to_their_own_report_and_that_to_the_rule_for_those_who_may_see_it(self, staff: Client) -> None:
        rule = Rule.objects.create(slug="search", name="Search", mode="enforce")
        add(5, allowed=1)
        [link] = re.findall(r'<th role="rowheader" scope="row"><a href="([^"]+)">Search</a>', shown(staff.get(REPORT)))
        form = f"/admin/django_ratelimiter/rule/{rule.pk}/change/"
        assert form not in shown(staff.get(link))
        User.objects.get().user_permissions.add(Permission.objects.get(codename="view_rule"))
        assert form in shown(staff.get(link))


class TestPeriods:
    @pytest.mark.parametrize(
        ("period", "rows"),
        [("1h", 1), ("24h", 2), ("", 2), ("7d", 3), ("30d", 4)],
        ids=lambda value: f"{value}",
    )
    def test_lengths(self, staff: Client, period: str, rows: int) -> None:
        for tier, minutes in (
            ("a", 30),
            ("b", 23 * 60),
            ("c", 6 * 1440),
            ("d", 29 * 1440),
            ("e", 80 * 1440),
        ):
            add(minutes, tier=tier, allowed=1)
        assert len(lines(staff.get(f"{REPORT}?period={period}"))) == rows + 2

    @pytest.mark.parametrize("page", ["", "top-callers/", "totals.csv"])
    def test_unknown(self, staff: Client, page: str) -> None:
        assert staff.get(f"{REPORT}{page}?period=year").status_code == 404

    def test_the_chosen_one_is_marked(self, staff: Client) -> None:
        page = staff.get(f"{REPORT}?period=7d").content.decode()
        assert re.findall(r'<a href="(\?\S+)" aria-current="page">', page) == ["?period=7d"]
        assert "<form class" not in page


class TestChart:
    def test_accessible_and_without_anything_inline(self, staff: Client) -> None:
        add(5, allowed=3, rejected=1, shadow_rejected=1)
        page = staff.get(f"{REPORT}?period=1h").content.decode()
        content = page.partition('<div id="content-main"')[2].partition("<footer")[0]
        assert "<script" not in content
        assert "style=" not in content
        assert "<style" not in content
        named = r'<svg class="ratelimiter-bars" role="img" aria-labelledby="(\S+) (\S+)">\s*<title id="\1">'
        assert re.search(named, content)
        assert "3 allowed and 1 rejected in all" in content
        assert content.count('<g class="ratelimiter-bar">') == 60
        assert "3 allowed, 1 rejected, 1 would be rejected</title>" in content
        assert 'href="/static/django_ratelimiter/usage.css"' in page

    def test_in_another_language(self, staff: Client) -> None:
        add(5, allowed=3000)
        with translation.override("de"):
            page = staff.get(REPORT).content.decode()
        assert "Anfragen pro Stunde" in page
        assert "3.000 zugelassen" in page
        assert not re.search(r'(?:x|y|width|height|x1|x2|y1|y2)="\d+,\d', page)


class TestEmpty:
    def test_nothing_collected_yet(self, staff: Client) -> None:
        told = text_of(staff.get(REPORT))
        assert "Nothing has been collected yet" in told
        assert "a task of Celery or Django" in told
        assert "manage.py ratelimit collect" in told

    def test_nothing_in_this_period(self, staff: Client) -> None:
        add(120, allowed=1)
        UsageBatch.objects.create(batch_id="1:a")
        told = text_of(staff.get(f"{REPORT}?period=1h"))
        assert "No request matched a rule in this period" in told
        assert "Latest minute with usage" in told
        assert re.search(r"Latest counts arrived \w+\.? \d", told)

    def test_when_counts_last_came_in(self, staff: Client) -> None:
        add(5, allowed=1)
        UsageBatch.objects.create(batch_id="1:a")
        assert "Latest counts arrived less than a minute ago." in text_of(staff.get(REPORT))
        UsageBatch.objects.update(collected_at=timezone.now() - timedelta(minutes=2, seconds=30))
        assert "Latest counts arrived 2 minutes ago." in text_of(staff.get(REPORT))
