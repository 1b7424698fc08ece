"""Staff with some permissions and not others are told so, and the home page leads them to their pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Rule

from .overview.test_overview import OVERVIEW, text_of
from .pages import ADD_RULE, RULES, BrowserForm, number, page_of, rule_form, shown

pytestmark = pytest.mark.django_db

LOCKED = "You can see the limits of this rule, but you need the permission"


@pytest.mark.parametrize(
    ("codenames", "owner", "is_locked", "has_fields"),
    [
        (["view_rule"], "admin", False, False),  # who cannot change the rule either
        (["view_rule", "change_rulelimit"], "admin", False, False),
        (["change_rule"], "admin", True, False),
        (["change_rule", "change_rulelimit"], "file", False, False),
        (["change_rule", "change_rulelimit"], "admin", False, True),
        (["change_rule", "add_rulelimit"], "admin", True, True),  # for another limit
    ],
)
def test_a_rule_shows_its_limits_and_says_why_they_are_locked(
    operator: Callable[..., Client], rule: Rule, codenames: list[str], owner: str, is_locked: bool, has_fields: bool
) -> None:
    """Without fields that no limit uses: the page's script hides those by the algorithm that is chosen."""
    Rule.objects.update(owner=owner)
    page = shown(operator(*codenames).get(page_of(rule)))
    assert "can use 100 units per minute" in page
    assert ((LOCKED in page), ("field-max_delay_ms" in page)) == (is_locked, has_fields)


def test_who_may_only_look_sees_all_and_changes_nothing(operator: Callable[..., Client], rule: Rule) -> None:
    Rule.objects.update(partition_by=["ip"], message="Wait.")
    before = number(), list(Rule.objects.values()), list(rule.limits.values())
    client = operator("view_rule", "publish_rule")
    page = client.get(page_of(rule))
    sent = BrowserForm(page.content.decode()).sent
    assert not {"name", "mode", "path", "limits-0-tier", "limits-0-quota"} & sent.keys()
    texts = ("What it applies to", "Matches no view.", "Wait.", "Expert options", "every other tier")
    for text in (*texts, "can use 100 units per minute"):
        assert text in shown(page)
    assert client.post(page_of(rule), rule_form(name="Forged", mode="off")).status_code == 403
    for action in ("enforce", "shadow", "switch_off", "forget"):
        client.post(RULES, {"action": action, "_selected_action": [rule.pk]})
    assert client.get(ADD_RULE).status_code == 403
    assert (number(), list(Rule.objects.values()), list(rule.limits.values())) == before


@pytest.mark.parametrize(
    ("codenames", "is_linked"), [(["view_rule"], False), (["view_rule", "view_usage_report"], True)]
)
def test_a_rule_leads_to_its_usage_whoever_may_see_that(
    operator: Callable[..., Client], rule: Rule, codenames: list[str], is_linked: bool
) -> None:
    client, address = operator(*codenames), f"{reverse('admin:django_ratelimiter_usage_rule')}?rule=export"
    assert (f'href="{address}"' in shown(client.get(page_of(rule)))) is is_linked
    assert (client.get(address).status_code == 200) is is_linked


def test_says_that_a_new_rule_will_have_no_limits(operator: Callable[..., Client]) -> None:
    page = shown(operator("add_rule", "view_rule").get(ADD_RULE))
    assert "You cannot add limits to this rule" in page


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
    for hidden in ("Version", "Round trip", "eeds attention", "Rejected in", "Stop all", "History", "Explain"):
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
