"""From a bad rule back to the last good version, and two editors at once, as people do it in a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from django_ratelimiter.models import Rule
from django_ratelimiter.rules import cache
from tests.browser import ENTER, Browser

from .pages import IN_BROWSER, open_as, page_of

pytestmark = IN_BROWSER

HISTORY = reverse("admin:django_ratelimiter_history")


@pytest.fixture
def site(window: Browser, live_server: Any, rule: Rule) -> str:
    """The address of a site whose rule was broken by its latest version; the browser is logged in there."""
    User.objects.create_superuser("admin", password="secret")
    with cache.editing(User.objects.create_user("ada"), "rule export saved", "Nobody needs it."):
        Rule.objects.update(mode="off")
    window.resize(1280, 900)
    open_as(window, "admin", f"{live_server.url}{HISTORY}")
    window.wait_for(".ratelimiter-history")
    window.complaints()
    return str(live_server.url)


@pytest.mark.parametrize("start", ["overview", "rules", "rule"])
def test_one_press_leads_to_the_question_and_a_second_answers_it(
    window: Browser, site: str, rule: Rule, start: str
) -> None:
    pages = {
        "overview": reverse("admin:app_list", args=["django_ratelimiter"]),
        "rules": reverse("admin:django_ratelimiter_rule_changelist"),
        "rule": page_of(rule),
    }
    window.open(f"{site}{pages[start]}")
    window.click("a[href$='/bring-back/']")
    window.wait_for("#ratelimiter-bring-back")
    rule.refresh_from_db()
    assert rule.mode == "off"
    window.press(ENTER)  # the reason is filled in, and has the focus
    window.wait_for(".messagelist")
    assert re.search(r"Back to version \d+", window.texts(".ratelimiter-rows tbody tr")[0])
    rule.refresh_from_db()
    assert rule.mode == "enforce"
    assert window.complaints() == []
