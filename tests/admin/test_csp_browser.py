"""Every page in a browser, under the strictest Content-Security-Policy: it keeps to that, and anybody can use it."""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from django.http import HttpRequest, HttpResponse
from django.middleware.security import SecurityMiddleware

from tests.admin.pages import IN_BROWSER
from tests.admin_pages import fill, pages, users
from tests.axe import faults_of, source
from tests.browser import ENTER, Browser
from tests.strict_csp import POLICY

pytestmark = IN_BROWSER


#: Open all that is folded.
UNFOLD: Final = "for (const each of document.querySelectorAll('details')) each.open = true"

#: What may be otherwise on a narrow screen, and with dark colours.
NARROW_AND_DARK: Final = ["color-contrast", "target-size", "scrollable-region-focusable"]

#: How the path to a page looks, and where it begins.
PATH: Final = """
const path = document.querySelector('.breadcrumbs'), [first, style] = [path.querySelector('a'), getComputedStyle(path)];
const box = first.getBoundingClientRect();
return [style.backgroundColor, style.color, getComputedStyle(first).color, getComputedStyle(first).fontSize,
    path.getBoundingClientRect().height, box.left, box.top];
"""


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the server, which runs already, a middleware that sets the field."""
    own = SecurityMiddleware.process_response

    def respond(self: SecurityMiddleware, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response["Content-Security-Policy"] = POLICY
        return own(self, request, response)

    monkeypatch.setattr(SecurityMiddleware, "process_response", respond)


def test_each_page_keeps_to_the_policy_and_can_be_used_by_anybody(
    window: Browser, strict: None, live_server: Any
) -> None:
    axe = source()
    fill(users()["superuser"])
    window.resize(1280, 900)
    window.open(f"{live_server.url}/admin/")
    window.type("#id_username", "admin")
    window.type("#id_password", "secret" + ENTER)
    window.wait_for("#user-tools")
    assert window.complaints() == []
    window.open(f"{live_server.url}/admin/auth/user/")
    path = window.script(PATH)
    for page in pages():
        window.resize(1280, 900)
        window.open(f"{live_server.url}{page.url}")
        assert page.is_home or window.script(PATH) == path, f"{page.name}: as on Django's own pages"
        complaints = window.complaints()
        faults = faults_of(window, axe) if axe else []
        window.resize(360, 900, dark=True)
        window.script(UNFOLD)
        faults += faults_of(window, axe, only=NARROW_AND_DARK) if axe else []
        assert faults == [], page.name
        assert window.script("return document.body.getBoundingClientRect().width") <= 360, "it is laid out again"
        assert [*complaints, *window.complaints()] == [], page.name
    if not axe:
        pytest.skip("axe-core cannot be had here: nobody has looked whether the pages can be used by anybody")


def test_the_policy_is_in_force(window: Browser, strict: None, live_server: Any) -> None:
    """Else the test above would pass for nothing."""
    window.open(f"{live_server.url}/admin/login/")
    window.complaints()
    window.script("new Image().src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='")
    deadline, complaints = time.monotonic() + 30, []
    while not complaints:
        assert time.monotonic() < deadline
        complaints = window.complaints()
    assert "Content Security Policy" in complaints[0]
