"""Forms that the tests of the admin send, and readers of the pages that come back."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_ratelimiter.models import RuleLimit
from django_ratelimiter.rules.stored import storage
from tests.browser import Browser, missing

from ..making import client_of

#: The marks of a test in a browser.
IN_BROWSER = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]

RULES = reverse("admin:django_ratelimiter_rule_changelist")
ADD_RULE = reverse("admin:django_ratelimiter_rule_add")
ADD_ASSIGNMENT = reverse("admin:django_ratelimiter_tierassignment_add")


def page_of(row: Any, kind: str = "change") -> str:
    """The address of a row's page."""
    return reverse(f"admin:{row._meta.label_lower.replace('.', '_')}_{kind}", args=[row.pk])


def open_as(window: Browser, name: str, url: str, width: int = 1280) -> None:
    """Open a page in the browser as a user who is logged in: `tests/admin/test_csp_browser.py` fills in the form."""
    window.resize(width, 900)
    client = client_of(User.objects.get(username=name))
    window.set_cookie(url, settings.SESSION_COOKIE_NAME, client.cookies[settings.SESSION_COOKIE_NAME].value)
    window.open(url)


def rule_form(*limits: dict[str, Any], stored: int = 0, **fields: Any) -> dict[str, Any]:
    """What the browser sends for a rule with these limits, of which the first `stored` are rows already."""
    form: dict[str, Any] = {
        "name": "Export",
        "slug": "export",
        "mode": "enforce",
        "methods": ["GET", "POST"],
        "path_kind": "prefix",
        "path": "/api/export/",
        "partition_by": ["user"],
        "missing_partition": "ip",
        "failure_policy": "closed",
        "cost": "1",
        "charge_when": "any",
        "priority": "100",
        "limits-TOTAL_FORMS": len(limits),
        "limits-INITIAL_FORMS": stored,
    }
    for number, limit in enumerate(limits):
        for name, value in {"algorithm": "sliding_window_counter", "tier": "", **limit}.items():
            form[f"limits-{number}-{name}"] = value
    return form | fields


def stored(*limits: RuleLimit) -> list[dict[str, Any]]:
    """What the browser sends for limits that it was shown."""
    return [
        {
            "id": limit.pk,
            "rule": limit.rule_id,
            "tier": limit.tier_id or "",
            "algorithm": limit.algorithm,
            "quota": limit.quota,
            "window_seconds": limit.window_seconds,
        }
        for limit in limits
    ]


def shown(response: Any) -> str:
    """The text of a page, entities resolved, without the places where lines may end."""
    return html.unescape(response.content.decode()).replace("<wbr>", "")


def text_of(response: Any) -> str:
    """What is read on a page: no tags, single spaces."""
    assert response.status_code == 200
    return " ".join(re.sub(r"<[^>]*>", " ", shown(response)).split())


def permit(*codenames: str) -> None:
    """Give the operator these permissions, and no others any more."""
    agent = User.objects.get(username="operator")
    agent.user_permissions.set(Permission.objects.filter(codename__in=codenames))


def errors_of(response: Any) -> dict[str, Any]:
    """What a page of a rule that was sent back says: by field, and by field of each limit under "limits"."""
    assert response.status_code == 200, "it was saved"
    context = response.context
    formset = context["inline_admin_formsets"][0].formset
    limits = [dict(errors) for errors in formset.errors]
    assert not formset.non_form_errors()
    for error in [message for errors in limits for messages in errors.values() for message in messages]:
        assert error in shown(response)  # none is dropped on the way to the page
    return dict(context["adminform"].form.errors) | {"limits": limits}


def number() -> int:
    """The number of the version in force."""
    return storage.committed_version().number


class BrowserForm(HTMLParser):
    """What a browser would send if its user opened this page and saved at once."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sent: dict[str, list[str]] = {}
        self.select: str | None = None
        self.options: list[tuple[str, bool]] = []
        self.text: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, value = given.get("name") or "", given.get("value")
        if tag == "input" and name and "checked" in given:
            self.sent.setdefault(name, []).append(value or "on")
        elif tag == "input" and name and given.get("type") not in ("checkbox", "radio", "submit"):
            self.sent.setdefault(name, []).append(value or "")
        elif tag == "select":
            self.select, self.options = name, []
        elif tag == "option":
            self.options.append((value or "", "selected" in given))
        elif tag == "textarea":
            self.text = name

    def handle_data(self, data: str) -> None:
        if self.text:
            self.sent[self.text] = [data.removeprefix("\n")]

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.text = None
        if tag == "select" and self.select:
            chosen = [value for value, selected in self.options if selected] or [self.options[0][0]]
            self.sent[self.select] = chosen
            self.select = None
