"""The reports in a browser, as a person opens them: wide and narrow, every link that leads there."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, Tier
from django_ratelimiter.usage.reports.coverage import DAY, HOUR
from tests.browser import Browser

from ..pages import IN_BROWSER, open_as
from .test_admin import REPORT
from .test_pages import count, meet, weigh

pytestmark = IN_BROWSER


@pytest.fixture
def page(window: Browser, live_server: Any) -> Browser:
    """The browser at the report on all rules, by somebody who may see reports, with usage of a year in it."""
    Rule.objects.create(slug="search", name="Search", mode="enforce")
    Tier.objects.create(slug="free", name="Free")
    for ago in (HOUR / 2, 20 * HOUR, 5 * DAY, 20 * DAY, 80 * DAY, 300 * DAY):
        count(ago, tier=f"t{ago // HOUR}", allowed=900, rejected=90, shadow_rejected=10)
        weigh(ago, "0123456789abcdef", 300, 30)
    count(40 * DAY, rule="other", allowed=5)
    user = User.objects.create_user("staff", password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_usage_report"))
    open_as(window, "staff", f"{live_server.url}{REPORT}")
    window.wait_for(".ratelimiter-usage .ratelimiter-totals")
    assert window.texts("h1") == ["Usage reports"]
    return window


def test_long_names_and_great_numbers(page: Browser) -> None:
    count(2 * HOUR, rule="w" * 50, tier="e" * 50, allowed=10**12, rejected=10**11, shadow_rejected=10**10, degraded=1)
    for width in (320, 1280):
        page.resize(width, 800)
        for period in (2, 3):
            page.click(f".ratelimiter-periods a:nth-of-type({period})")
            overflowing = (
                "return [...document.querySelectorAll("
                "':root, .ratelimiter-figures div, #content > h1, .ratelimiter-totals tbody th')]"
                ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
            )
            assert page.script(overflowing) == []
    page.click(".ratelimiter-totals tbody tr:last-child th a")
    assert page.texts("h1") == [f"Usage of “{'w' * 50}”"]
    page.resize(320, 800)
    assert page.script(overflowing) == []


def test_the_top_ten_of_this_month_as_a_chart_and_as_a_file_in_two_clicks(window: Browser, live_server: Any) -> None:
    for place in range(12):
        meet(digest(f"user:{place}"), 120 - place)
    User.objects.create_superuser("root", password="secret")
    open_as(window, "root", f"{live_server.url}/admin/django_ratelimiter/")
    window.script("[...document.querySelectorAll('#content a')].find(a => a.text === 'Top callers').click()")
    window.wait_for(".ratelimiter-top-callers")
    assert window.texts(".ratelimiter-periods [aria-current=page]") == ["This month"]
    bars = window.script(
        "return document.querySelectorAll('#content svg.ratelimiter-bars rect.ratelimiter-allowed').length"
    )
    assert bars == 12
    file = window.script(
        "return fetch(document.querySelector('.ratelimiter-downloads a').href).then(answer => answer.text())"
    )
    callers = [line.split(",")[0].removeprefix("'") for line in file.splitlines()[1:11]]
    shown = [caller.removesuffix(")").split()[-1] for caller in callers]  # of "user: root (id 1)" the key
    assert shown == [str(place) for place in range(10)]
    assert window.complaints() == []
