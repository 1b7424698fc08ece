"""The overview in a browser: what its cards say stays within them."""

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
return [...document.querySelectorAll('.ratelimiter-card dd *')]
    .filter(each => each.getBoundingClientRect().right > edge(each.closest('.ratelimiter-card')))
    .map(each => each.innerText);
"""


@pytest.mark.parametrize("width", [360, 1280])
def test_a_badge_of_several_words_stays_in_its_card(window: Browser, live_server: Any, width: int) -> None:
    User.objects.create_superuser("admin", password="secret")
    with cache.editing(summary="the first"):
        pass
    storage.state().update(number=storage.committed_version().number + 1)
    window.resize(width, 900)
    open_as(window, "admin", f"{live_server.url}{OVERVIEW}")
    assert window.texts("dd .ratelimiter-badge") == ["not yet in force everywhere"]
    assert window.script(STICKING_OUT) == []
