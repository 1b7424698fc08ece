"""The search field in a browser: it suggests pages, which are reached by mouse and by keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from ...browser import Browser
from ..pages import IN_BROWSER, open_as
from .test_overview import OVERVIEW

pytestmark = IN_BROWSER

LINKS = "#ratelimiter-suggestions a"


@pytest.fixture
def page(window: Browser, live_server: Any) -> Browser:
    User.objects.create_superuser("admin", password="secret")
    for name in ("annette", "johanna"):
        User.objects.create_user(name)
    window.resize(1280, 900)
    open_as(window, "admin", f"{live_server.url}{OVERVIEW}")
    return window


def test_a_caller_is_found_while_typing(page: Browser) -> None:
    page.type("#ratelimiter-search", "ann")
    page.wait_for(f"{LINKS}")
    assert page.texts(LINKS) == ["annette", "johanna"]
    assert page.script("return document.getElementById('ratelimiter-suggested').textContent").startswith("2 sugg")
    page.click("h1")
    assert page.script("return document.getElementById('ratelimiter-suggestions').hidden")
    page.click("#ratelimiter-search")
    page.press("\ue015")  # the arrow down
    assert page.script("return document.activeElement.textContent") == "annette"
    page.press("\ue00c")  # escape
    assert page.script("return document.getElementById('ratelimiter-suggestions').hidden")
    assert page.script("return document.activeElement.id") == "ratelimiter-search"
    page.type("#ratelimiter-search", "e")
    page.wait_for(f"{LINKS}:only-of-type")
    page.click(LINKS)
    page.wait_for("#ratelimiter-state")
    assert page.texts("h1")[-1].endswith("annette")
    assert page.complaints() == []
