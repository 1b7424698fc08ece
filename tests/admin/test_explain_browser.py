"""The page that explains a request in a browser: from a pasted command to the reason."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Tier, TierAssignment
from tests.browser import Browser
from tests.making import MakeRule

from .pages import IN_BROWSER, open_as

pytestmark = [*IN_BROWSER, pytest.mark.urls("tests.inspection.urls")]

OVERVIEW = reverse("admin:app_list", args=["django_ratelimiter"])


def test_a_pasted_command_is_explained(window: Browser, live_server: Any, make_rule: MakeRule, people: None) -> None:
    User.objects.create_superuser("admin", password="secret")
    gold = Tier.objects.create(slug="gold", name="Gold", rank=2)
    TierAssignment.objects.create(tier=gold, user=User.objects.get(username="ann"))
    make_rule("requests-by-address", quota=3, partition_by=["ip"], limit={"window_seconds": 3_600}, priority=1)
    make_rule("customers", quota=100, partition_by=["user"], algorithm="sliding_window_counter")
    make_rule("exports", path_kind="prefix", path="/api/export/")
    make_rule("strict-trial", quota=1, partition_by=["ip"], mode="shadow")
    make_rule("uploads", methods=["POST", "PUT"])
    for _ in range(4):
        Client().get("/hello/", REMOTE_ADDR="203.0.113.7")
    window.resize(1280, 900)
    open_as(window, "admin", f"{live_server.url}{reverse('admin:django_ratelimiter_explain')}")
    window.wait_for("#id_pasted")
    window.type("#id_pasted", "curl 'https://example.org/hello/' -H 'accept: application/json'")
    window.type("#id_user", "ann")
    window.type("#id_ip", "203.0.113.7")
    window.click("#content-main input[type=submit]")
    window.wait_for("#ratelimiter-answer")
    [page] = window.texts("#content-main")
    assert "Rejected with status 429 by requests-by-address." in page
    assert "Gold, assigned to the user ann" in page
    assert "Method: it is for POST, PUT, and this is GET." in page
    for width, dark in ((1280, False), (1280, True), (360, False)):
        window.resize(width, 900, dark=dark)
        assert window.script("return document.documentElement.scrollWidth") <= width
    assert window.complaints() == []


def test_why_a_customer_is_blocked_takes_two_clicks(
    window: Browser, live_server: Any, make_rule: MakeRule, people: None
) -> None:
    User.objects.create_superuser("admin", password="secret")
    make_rule("exports", quota=1, partition_by=["user"], path_kind="exact", path="/hello/")
    customer = Client()
    customer.force_login(User.objects.get(username="ann"))
    for _ in range(2):
        customer.get("/hello/")
    window.resize(1280, 900)
    open_as(window, "admin", f"{live_server.url}{OVERVIEW}")
    window.click("nav a[href*=rejections]")  # the first click
    window.wait_for("#ratelimiter-rejections a[href*=explain]")
    window.click("#ratelimiter-rejections a[href*=explain]")  # the second
    window.wait_for("#ratelimiter-answer")
    [page] = window.texts("#content-main")
    assert "Rejected with status 429 by exports." in page
    assert "1 of 1 used, 0 left; blocked until" in page
    assert "rejected before" in page
    assert window.complaints() == []
