"""The overview in a browser: what its cards say stays within them, and its search suggests pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage

from ...browser import Browser
from ..pages import IN_BROWSER, open_as
from .test_overview import OVERVIEW

pytestmark = IN_BROWSER

#: What reaches into the padding of its card, or out of it.
STICKING_OUT = """
const edge = card => card.getBoundingClientRect().right - parseFloat(getComputedStyle(card).paddingRight) + 0.5;
return [...document.querySelectorAll('.ratelimiter-card :is(dd, li) *')]
    .filter(each => each.getBoundingClientRect().right > edge(each.closest('.ratelimiter-card')))
    .map(each => each.innerText);
"""


#: The heading of the overview's first part, and how much broader the overview is.
FIRST = """
const [all, first] = ['.ratelimiter-overview', '.ratelimiter-overview > *'].map(each => document.querySelector(each));
return [first.querySelector('h2').innerText, Math.round(all.clientWidth - first.getBoundingClientRect().width)];
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_what_needs_attention_comes_first_and_is_as_broad_as_all(window: Browser, live_server: Any, width: int) -> None:
    User.objects.create_superuser("admin", password="secret")
    cache.invalidate(summary="the first")
    storage.state().update(number=storage.committed_version().number + 1)
    open_as(window, "admin", f"{live_server.url}{OVERVIEW}", width)
    assert window.script(FIRST) == ["Needs attention", 0]
    [unpublished, uncollected] = window.texts("#ratelimiter-attention + ul > li")
    assert "is not yet in force everywhere" in unpublished
    assert "Run manage.py ratelimit collect now, and from then on" in uncollected
    assert window.script(STICKING_OUT) == []


LINKS = "#ratelimiter-suggestions a"


@pytest.fixture
def overview(window: Browser, live_server: Any) -> Browser:
    User.objects.create_superuser("admin", password="secret")
    for name in ("annette", "johanna"):
        User.objects.create_user(name)
    open_as(window, "admin", f"{live_server.url}{OVERVIEW}")
    return window


def test_a_caller_is_found_while_typing(overview: Browser) -> None:
    overview.type("#ratelimiter-search", "ann")
    overview.wait_for(f"{LINKS}")
    assert overview.texts(LINKS) == ["annette", "johanna"]
    assert overview.script("return document.getElementById('ratelimiter-suggested').textContent").startswith("2 sugg")
    overview.click("h1")
    assert overview.script("return document.getElementById('ratelimiter-suggestions').hidden")
    overview.click("#ratelimiter-search")
    overview.press("\ue015")  # the arrow down
    assert overview.script("return document.activeElement.textContent") == "annette"
    overview.press("\ue00c")  # escape
    assert overview.script("return document.getElementById('ratelimiter-suggestions').hidden")
    assert overview.script("return document.activeElement.id") == "ratelimiter-search"
    overview.type("#ratelimiter-search", "e")
    overview.wait_for(f"{LINKS}:only-of-type")
    overview.click(LINKS)
    overview.wait_for("#ratelimiter-state")
    assert overview.texts("h1")[-1].endswith("annette")
    assert overview.complaints() == []
