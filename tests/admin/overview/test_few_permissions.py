"""Staff with one permission of ours are led from the admin's home page to what they may do, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Rule

from ..pages import shown
from .test_overview import OVERVIEW, text_of

pytestmark = pytest.mark.django_db

HOME, SEARCH = reverse("admin:index"), reverse("admin:django_ratelimiter_search")
CALLER, SWITCH = reverse("admin:django_ratelimiter_caller"), reverse("admin:django_ratelimiter_enforcement")


@pytest.mark.parametrize("codename", ["unblock_caller", "view_tierassignment"])
def test_who_acts_on_callers_finds_them(operator: Callable[..., Client], rule: Rule, codename: str) -> None:
    ann, client = User.objects.create_user("ann"), operator(codename)
    assert f'href="{OVERVIEW}"' in shown(client.get(HOME))
    response = client.get(OVERVIEW)
    page, text = shown(response), text_of(response)
    assert "Enforcement on" in text
    assert f'<a href="{CALLER}">Find a caller</a>' in page
    assert "User, API key, address, or the reference of a rejection" in text
    for hidden in ("Version", "Round trip", "Needs attention", "Rejected in", "Stop all", "History", "Explain"):
        assert hidden not in text
    found = client.post(SEARCH, {"q": "ann"})
    assert found["Location"] == f"{CALLER}?kind=user&value=id%3A{ann.pk}"
    assert client.get(found["Location"]).status_code == 200
    for nothing in ("/api/export/", "GET /api/export/", "export", "rule:export"):
        assert "Nothing matches this." in shown(client.post(SEARCH, {"q": nothing}))
    listed = reverse("admin:django_ratelimiter_tierassignment_changelist")
    assert (f'href="{listed}"' in shown(client.get(HOME))) == (client.get(listed).status_code == 200)


def test_who_may_stop_enforcement_finds_the_switch(operator: Callable[..., Client], rule: Rule) -> None:
    client = operator("switch_enforcement")
    assert f'href="{OVERVIEW}"' in shown(client.get(HOME))
    page = shown(client.get(OVERVIEW))
    assert f'<a class="ratelimiter-danger" href="{SWITCH}">Stop all enforcement</a>' in page
    assert 'role="search"' not in page
    assert client.post(SEARCH, {"q": "x"}).status_code == 403
    sent = {"enforcement": "off", "reason": "a drill"}
    assert client.post(SWITCH, sent)["Location"] == OVERVIEW
    assert "Why a drill" in text_of(client.get(OVERVIEW))


@pytest.mark.parametrize("codename", ["reveal_caller", "publish_rule", "view_user"])
def test_a_permission_that_leads_nowhere_leads_nowhere(
    operator: Callable[..., Client], rule: Rule, codename: str
) -> None:
    client = operator(codename)
    assert OVERVIEW not in shown(client.get(HOME))
    assert client.get(OVERVIEW).status_code == 404
