"""Recent rejections in a browser: they update by themselves, and whoever reads is not disturbed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from ..browser import Browser
from ..making import make_rule
from .pages import IN_BROWSER, open_as
from .test_rejections import ANN, PAGE, reject

pytestmark = IN_BROWSER


@pytest.fixture
def page(window: Browser, live_server: Any) -> Iterator[Browser]:
    """The page with one row, seen by somebody who may see reports, asking each tenth of a second."""
    make_rule("export", 100, name="Export", path="/api/export/", path_kind="prefix")
    reject(tier="", now_us=time.time_ns() // 1000 - 60_000_000)  # those of the same quarter of a second have any order
    user = User.objects.create_user("staff", password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_usage_report"))
    open_as(window, "staff", f"{live_server.url}{PAGE}")
    window.wait_for("#ratelimiter-rejections tbody tr")
    window.script("document.getElementById('ratelimiter-rejections').dataset.every = '0.1'")
    window.click("#ratelimiter-rejections-pause")  # and on again, at the new pace
    window.click("#ratelimiter-rejections-pause")
    yield window
    window.open("about:blank")  # which asks for nothing
    window.complaints()


def callers(page: Browser) -> list[str]:
    return page.texts("#ratelimiter-rejections tbody th")


def test_new_rejections_come_by_themselves_and_are_told(page: Browser) -> None:
    assert callers(page) == [ANN]
    reject(whom="b" * 22)
    page.wait_for("#ratelimiter-rejections tbody tr:nth-child(2)")
    assert callers(page) == ["b" * 22, ANN]
    assert page.script("return document.querySelector('[role=status]').getAttribute('aria-live')") == "polite"
    assert page.complaints() == []


def test_they_can_be_paused(page: Browser) -> None:
    assert page.texts("#ratelimiter-rejections-pause") == ["Pause updates"]
    page.click("#ratelimiter-rejections-pause")
    assert page.texts("#ratelimiter-rejections-pause") == ["Resume updates"]
    assert page.texts("[role=status]") == ["Updates are paused."]
    reject(whom="b" * 22)
    page.script("return new Promise(done => setTimeout(done, 500))")
    assert callers(page) == [ANN]
    page.click("#ratelimiter-rejections-pause")
    page.wait_for("#ratelimiter-rejections tbody tr:nth-child(2)")


def test_they_stop_where_nobody_looks(page: Browser) -> None:
    page.script(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.script("return new Promise(done => setTimeout(done, 300))")  # what was asked before may still come
    reject(whom="b" * 22)
    page.script("return new Promise(done => setTimeout(done, 500))")
    assert callers(page) == [ANN]
    page.script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for("#ratelimiter-rejections tbody tr:nth-child(2)")


def test_whoever_is_there_with_the_keyboard_stays_there(page: Browser) -> None:
    page.script("document.querySelector('#ratelimiter-rejections [role=region]').focus()")
    reject(whom="b" * 22)
    page.wait_for("#ratelimiter-rejections tbody tr:nth-child(2)")
    assert page.script("return document.activeElement.getAttribute('role')") == "region"


def test_what_fails_is_told_and_tried_again(page: Browser) -> None:
    User.objects.get().user_permissions.clear()
    page.script("return new Promise(done => setTimeout(done, 500))")
    assert page.texts("[role=status]") == ["The list cannot be updated now. It will be tried again."]
    assert callers(page) == [ANN]
