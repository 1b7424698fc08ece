"""The page of recent rejections: who may see it, what it says of whom, and that nothing of a request reaches it raw."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from django_ratelimiter.admin import rejections as page
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.inspection.references import everybody
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier
from django_ratelimiter.rules import cache

from ..making import failing, update
from .callers.page import CALLER

pytestmark = pytest.mark.django_db

PAGE = "/admin/django_ratelimiter/usagebucket/rejections/"
LogIn = Callable[..., Client]
ANN = digest("user:1")
NOTHING = "\u2013"


def reject(
    rule: str = "export",
    whom: str = ANN,
    tier: str = "free",
    times: int = 1,
    *,
    gating: bool = True,
    now_us: int | None = None,
) -> None:
    """Reject somebody so often, by the first limit of `export`."""
    charge = Charge(f"{rule}:{whom}", Limit(100, 60), cost=101, usage=f"{rule}|{tier}", gating=gating, partition=whom)
    for _ in range(times):
        get_engine().check([charge], now_us=now_us)


def cells(response: Any) -> list[list[str]]:
    """What is read in each row."""
    assert response.status_code == 200
    body = response.content.decode().replace("<wbr>", "").partition("<tbody")[2].partition("</tbody>")[0]
    return [
        [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr.*?</tr>", body, re.S)
    ]


@pytest.fixture
def staff(operator: LogIn) -> Client:
    return operator("view_usage_report")


def test_who_was_rejected_by_what_how_often(staff: Client, rule: Rule) -> None:
    cache.invalidate()
    reject(times=3)
    ((last, *told, since, why),) = cells(staff.get(PAGE))
    assert told == [ANN, f"Export Free export#{ANN[:8]}", "100 per minute, sliding window", "/api/export/", "3"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", last)
    assert since <= last
    assert why == NOTHING


def test_unreadable_bodies_are_named_and_have_no_entry_of_their_own(admin_client: Client, rule: Rule) -> None:
    update(Rule.objects.filter(pk=rule.pk), partition_by=["field:name"])
    unreadable = digest("unreadable")
    reject(whom=unreadable)
    assert "Requests whose body cannot be read" in cells(admin_client.get(PAGE))[0][1]
    pages = [admin_client.get(CALLER, {"digest": who, "rule": "export"}).content.decode() for who in (unreadable, ANN)]
    assert ["Requests whose body cannot be read" in each for each in pages] == [True, False]
    assert ["Deny every request" in each for each in pages] == [False, True]


def test_counter_that_all_share_has_no_caller(staff: Client) -> None:
    reject(whom=everybody())
    assert "all callers together" in " ".join(cells(staff.get(PAGE))[0])


def test_of_a_caller_who_is_not_known_explain_asks_first(operator: LogIn, rule: Rule) -> None:
    """Its answer would be about somebody else."""
    update(Rule.objects.filter(pk=rule.pk), partition_by=["user"])
    reject()
    client = operator("view_usage_report", "view_rule")
    with override_settings(RATELIMITER={**settings.RATELIMITER, "REVEAL": []}):
        found = re.search(r'href="([^"]*/explain/[^"]*)"', client.get(PAGE).content.decode())
        assert found
        page = client.get(html.unescape(found[1])).content.decode()
    assert f"reference=export%23{ANN[:8]}" in found[1]
    assert "It does not name the caller." in page
    assert "Allowed." not in page
    assert 'value="/api/export/"' in page


def test_says_what_it_shows_and_what_it_may_miss(staff: Client) -> None:
    text = " ".join(re.sub(r"<[^>]*>", " ", staff.get(PAGE).content.decode()).split())
    assert "Nobody was rejected in the last day." in text
    assert "Access entries that deny" not in text


def test_leads_to_the_access_entries_that_deny(operator: LogIn) -> None:
    client = operator("view_usage_report", "view_accessentry", "reveal_caller")
    AccessEntry.objects.create(action="deny", kind="ip", value="192.0.2.1")
    AccessEntry.objects.create(action="allow", kind="ip", value="192.0.2.2")
    found = re.search(r'href="([^"]*)">Access entries that deny', client.get(PAGE).content.decode())
    assert found
    page = client.get(found[1]).content.decode()
    assert "192.0.2.1" in page
    assert "192.0.2.2" not in page


def test_a_former_rule_s_rejections_are_shown_by_its_slug(staff: Client) -> None:
    reject("gone", tier="")
    ((_, caller, by, limit, reach, times, *_rest),) = cells(staff.get(PAGE))
    assert [caller, by, limit, reach, times] == [ANN, f"gone gone#{ANN[:8]}", NOTHING, NOTHING, "1"]


def test_shadows_and_estimates_are_marked(staff: Client) -> None:
    minute = int(time.time()) // 60 * 60_000_000  # all in one: each minute counts the first ones exactly
    reject("trial", gating=False, now_us=minute)
    reject("flood", times=200, now_us=minute + 1_000_000)
    rows = cells(staff.get(PAGE))
    assert [row[2] for row in rows] == [f"flood free flood#{ANN[:8]}", f"trial free would be rejected trial#{ANN[:8]}"]
    assert [row[5] for row in rows] == ["about 200", "1"]


def test_list_says_what_a_flood_makes_of_its_figures(staff: Client) -> None:
    """The twentieth rejection after the first ones is recorded as twenty, whoever's it is."""
    attacker, innocent = "a" * 22, "i" * 22
    minute = int(time.time()) // 60 * 60_000_000
    for whom, times in ((innocent, 1), (attacker, 218), (innocent, 1)):
        reject("flood", whom, times=times, now_us=minute)
    reject("quiet", times=3)
    page = staff.get(PAGE)
    assert {(row[1], row[5]) for row in cells(page)} == {(attacker, "about 199"), (ANN, "3"), (innocent, "few")}
    text = " ".join(page.content.decode().split())
    assert 'aria-sort="descending">Last ↓</th>' in text
    assert text.index("</table>") < text.index("in a flood, one rejection in 20 is recorded, and counts as 20")


def test_without_a_flood_the_latest_comes_first_and_nothing_is_said_of_sampling(staff: Client) -> None:
    minute = int(time.time()) // 60 * 60_000_000
    reject("often", times=9, now_us=minute)
    reject("once", "b" * 22, now_us=minute + 1_000_000)
    response = staff.get(PAGE)
    assert [row[5] for row in cells(response)] == ["1", "9"]
    assert "in a flood" not in response.content.decode()


def test_one_rule_alone(staff: Client) -> None:
    reject("one")
    reject("two")
    assert [row[2] for row in cells(staff.get(PAGE, {"rule": "two"}))] == [f"two free two#{ANN[:8]}"]
    text = staff.get(PAGE, {"rule": "three"}).content.decode()
    assert "This rule has rejected nobody" in text
    assert '<option value="three" selected>' in text
    assert "part=rows" in text
    assert "rule=three&amp;part=rows" in text


def test_the_rows_alone_are_no_page(staff: Client) -> None:
    reject()
    response = staff.get(PAGE, {"part": "rows"})
    assert len(cells(response)) == 1
    assert response.content.decode().count("Times are in the time zone America/Chicago.") == 1
    assert "<html" not in response.content.decode()
    assert "no-store" in response["Cache-Control"]


def test_without_redis_it_says_so(staff: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "recent", failing(EngineUnavailable("gone")))
    assert "Redis does not answer" in staff.get(PAGE).content.decode()


def test_it_takes_the_same_queries_for_many_rules(staff: Client, free: Tier) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as made:
            staff.get(PAGE)
        return len(made)

    reject()
    few = queries()
    rules = Rule.objects.bulk_create(
        Rule(slug=f"r{number}", name=f"R {number}", mode="enforce") for number in range(50)
    )
    RuleLimit.objects.bulk_create(RuleLimit(rule=rule, quota=5, window_seconds=60) for rule in rules)
    cache.invalidate()
    cache.current_rules()
    for rule in rules:
        reject(rule.slug, tier="")
    assert queries() <= few <= 15
    assert len(cells(staff.get(PAGE))) == 51


def test_the_reports_lead_there(staff: Client) -> None:
    assert f'href="{PAGE}"' in staff.get("/admin/django_ratelimiter/usagebucket/").content.decode()
