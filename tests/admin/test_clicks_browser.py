"""Clicks of operators in a browser, counted from the overview on, for the commonest tasks: typing is no click.

Top callers are in `usage/test_browser.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_ratelimiter.identity import digest
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.rules.stored import storage
from tests.browser import ENTER, Browser
from tests.forecast.traffic import record
from tests.making import make_rule

from .overview.test_overview import OVERVIEW
from .pages import IN_BROWSER, open_as
from .test_forecast import yesterday

pytestmark = IN_BROWSER

ATTACKER, CUSTOMER = "203.0.113.77", "192.0.2.7"
SAVE = ".submit-row input[name=_save], input[name=_save]"


class Hand:
    """The hand of an operator at the overview, with its clicks."""

    def __init__(self, window: Browser) -> None:
        self.window = window
        self.clicks = 0

    def click(self, selector: str, then: str) -> None:
        """Press an element, and wait for one of the page that comes next."""
        self.clicks += 1
        self.window.click(selector)
        self.window.wait_for(then)


@pytest.fixture
def hand(window: Browser, live_server: Any) -> Iterator[Callable[[], Hand]]:
    """A hand at the overview: `hand()`. The browser has nothing to complain of afterwards."""
    User.objects.create_superuser("admin", password="secret")

    def at_overview() -> Hand:
        open_as(window, "admin", f"{live_server.url}{OVERVIEW}")
        return Hand(window)

    yield at_overview
    assert window.complaints() == []


@pytest.fixture
def ann() -> User:
    """A customer who has used up one of her limits, on a site with tiers."""
    Tier.objects.create(slug="free", name="Free", default_for="authenticated")
    make_rule("export", 2, partition_by=["user"], path_kind="exact", path="/hello/")
    user = User.objects.create_user("ann")
    assert [ask(user=user) for _ in range(3)] == [200, 200, 429]
    return user


def ask(address: str = CUSTOMER, user: User | None = None) -> int:
    client = Client()
    if user is not None:
        client.force_login(user)
    return int(client.get("/hello/", REMOTE_ADDR=address).status_code)


def find_ann(hand: Hand) -> None:
    hand.window.type("#ratelimiter-search", "ann")
    hand.click("form[role=search] [type=submit]", "#ratelimiter-state")


def test_a_customer_is_unblocked_in_two_clicks_of_which_the_first_says_why(hand: Callable[[], Hand], ann: User) -> None:
    operator = hand()
    find_ann(operator)
    [state] = operator.window.texts("#ratelimiter-state")
    assert state.startswith("blocked One rule rejects requests of this caller now: export until ")
    operator.window.click("#ratelimiter-reset")
    assert operator.window.texts(".messagelist li") == []  # the browser asks for the reason first
    operator.window.type("#ratelimiter-reason", "Called: our import ran twice")
    operator.click("#ratelimiter-reset", ".messagelist li.success")
    assert "none of them blocks the caller now" in operator.window.texts(".messagelist li")[0]
    assert operator.clicks == 2
    assert ask(user=ann) == 200


def test_a_customer_has_twice_as_much_until_friday_in_three_clicks(hand: Callable[[], Hand], ann: User) -> None:
    operator = hand()
    find_ann(operator)
    operator.click("#ratelimiter-more", "#id_ends_at_0")
    operator.window.type("#id_reason", "Called: a busy week")
    operator.click(SAVE, ".messagelist li.success")
    assert "limits times 2, until" in " ".join(operator.window.texts("#content"))
    assert operator.clicks == 3
    row = TierAssignment.objects.get()
    assert (row.user, row.multiplier, row.reason) == (ann, 2, "Called: a busy week")
    assert (timezone.localtime(row.ends_at) - timedelta(seconds=1)).weekday() == 4
    tiers.forget()
    assert ask(user=ann) == 200


def test_why_a_customer_is_blocked_takes_two_clicks(hand: Callable[[], Hand], ann: User) -> None:
    operator = hand()
    operator.click("nav a[href*=rejections]", "#ratelimiter-rejections a[href*=explain]")
    operator.click("#ratelimiter-rejections a[href*=explain]", "#ratelimiter-answer")
    [page] = operator.window.texts("#content-main")
    assert "Rejected with status 429 by export." in page
    assert "2 of 2 used, 0 left; blocked until" in page
    assert "rejected before" in page
    assert operator.clicks == 2


@pytest.mark.parametrize("reveal", [None, []])
def test_an_attacker_is_denied_for_a_day_in_four_clicks(
    hand: Callable[[], Hand], settings: Any, reveal: list[str] | None
) -> None:
    """By its address, and where only its digest is known."""
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": reveal}
    make_rule("all", 3, partition_by=["ip"], path_kind="prefix", path="/hello/")
    assert [ask(ATTACKER) for _ in range(20)] == [200] * 3 + [429] * 17
    operator = hand()
    who = digest(f"ip:{ATTACKER}") if reveal == [] else f"IP address: {ATTACKER}"
    operator.click("nav a[href*=rejections]", "#ratelimiter-rejections tbody th a")
    assert operator.window.texts("#ratelimiter-rejections tbody th") == [who]
    operator.click("#ratelimiter-rejections tbody th a", "#ratelimiter-deny")
    assert (ATTACKER in operator.window.texts("#content h1")[0]) is (reveal is None)
    operator.click("#ratelimiter-deny", "#id_expires_at_0")
    operator.window.type("#id_reason", "attack on the shop")
    operator.click(SAVE, "#ratelimiter-state")
    assert operator.window.texts("#ratelimiter-state")[0].startswith("denied")
    assert operator.clicks == 4
    entry = AccessEntry.objects.get()
    assert (entry.kind, entry.action) == ("digest" if reveal == [] else "ip", "deny")
    assert timedelta(days=1) <= entry.expires_at - timezone.now() <= timedelta(days=2)
    storage.forget_entries()
    assert [ask(ATTACKER), ask(CUSTOMER)] == [403, 200]


def test_all_enforcement_is_stopped_in_two_clicks(hand: Callable[[], Hand], ann: User) -> None:
    operator = hand()
    operator.click("a.ratelimiter-danger", "#id_reason")
    operator.window.type("#id_reason", "Everybody is rejected")
    operator.click("#content-main input[type=submit]", ".messagelist")
    assert operator.clicks == 2
    cache.invalidate()
    assert ask(user=ann) == 200


def test_the_rules_from_before_a_mistake_are_back_in_a_click_and_a_key(hand: Callable[[], Hand]) -> None:
    rule = make_rule("export")
    with cache.editing(User.objects.create_user("ada"), "rule export saved", "Nobody needs it."):
        Rule.objects.update(mode="off")
    operator = hand()
    operator.click("a[href$='/bring-back/']", "#ratelimiter-bring-back")
    rule.refresh_from_db()
    assert rule.mode == "off"
    operator.window.press(ENTER)  # the reason is filled in, and has the focus
    operator.window.wait_for(".messagelist")
    assert re.search(r"Back to version \d+", operator.window.texts(".ratelimiter-rows tbody tr")[0])
    rule.refresh_from_db()
    assert (rule.mode, operator.clicks) == ("enforce", 1)


def test_a_rule_among_300_takes_one_click_and_what_50_would_do_at_most_three(hand: Callable[[], Hand]) -> None:
    Rule.objects.bulk_create([Rule(slug=f"rule-{number}", name=f"Rule {number}") for number in range(299)])
    make_rule("uploads", 100, partition_by=["ip"])
    record(yesterday(), {f"caller-{number}": [number] for number in range(1, 61)}, rule="uploads", tier="")
    operator = hand()
    operator.window.type("#ratelimiter-search", "uploads")
    operator.click("form[role=search] [type=submit]", "#id_limits-0-quota")
    assert operator.clicks == 1
    operator.window.script("document.getElementById('id_limits-0-quota').value = 50")
    operator.click(".ratelimiter-ask button", ".ratelimiter-answer strong")
    assert "would be rejected at least once" in operator.window.texts(".ratelimiter-answer strong")[0]
    assert operator.clicks <= 3
    assert RuleLimit.objects.get().quota == 100
