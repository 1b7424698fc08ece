"""An attack by address in a browser: from the overview to "denied", by its name and where only its digest is known."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.identity import digest
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import access_cache
from tests.browser import Browser

from ..overview.test_overview import OVERVIEW
from ..pages import IN_BROWSER, open_as

pytestmark = IN_BROWSER

ATTACKER, CUSTOMER = "203.0.113.77", "192.0.2.7"


@pytest.fixture
def attacked() -> None:
    """A site with a rule by address, which an attacker and a customer have met."""
    User.objects.create_superuser("admin", password="secret")
    rule = Rule.objects.create(slug="all", name="All", mode="enforce", partition_by=["ip"], path="/hello/")
    rule.path_kind = "prefix"
    rule.save()
    RuleLimit.objects.create(rule=rule, quota=3, window_seconds=Decimal(3_600))
    cache.invalidate()
    assert [ask(ATTACKER) for _ in range(20)] == [200] * 3 + [429] * 17
    assert ask(CUSTOMER) == 200


def ask(address: str) -> int:
    return int(Client().get("/hello/", REMOTE_ADDR=address).status_code)


@pytest.mark.parametrize("reveal", [None, []])
@pytest.mark.usefixtures("attacked")
def test_an_attacker_is_named_and_denied_in_three_clicks(
    window: Browser, live_server: Any, settings: Any, reveal: list[str] | None
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": reveal}
    window.resize(1280, 900)
    open_as(window, "admin", f"{live_server.url}{OVERVIEW}")
    who = digest(f"ip:{ATTACKER}") if reveal == [] else f"IP address: {ATTACKER}"
    window.click("nav a[href*=rejections]")  # the first click
    window.wait_for("#ratelimiter-rejections tbody th a")
    assert window.texts("#ratelimiter-rejections tbody th") == [who]
    window.click("#ratelimiter-rejections tbody th a")  # the second
    window.wait_for("#ratelimiter-reason")
    assert (ATTACKER in window.texts("#content h1")[0]) is (reveal is None)
    window.type("#ratelimiter-reason", "attack on the shop")
    window.click("#ratelimiter-act button[value=deny]")  # the third
    window.wait_for(".messagelist .success")
    assert "Checked: it is in force." in window.texts(".messagelist .success")[0]
    assert window.texts("#ratelimiter-act button[value=end-access]") == ["End the access entry now"]
    assert AccessEntry.objects.get().kind == ("digest" if reveal == [] else "ip")
    access_cache.forget()
    assert [ask(ATTACKER), ask(CUSTOMER)] == [403, 200]
    assert window.complaints() == []
