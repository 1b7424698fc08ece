"""The admin's switch: who sees it, what it asks, what it does, and the notice while enforcement is stopped."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Rule, RuleSetVersion
from django_ratelimiter.rules import cache

from .pages import RULES, page_of, shown

pytestmark = pytest.mark.django_db

SWITCH = reverse("admin:django_ratelimiter_enforcement")
OFF, ON = ({"enforcement": way, "reason": "403 for all of Acme"} for way in ("off", "on"))
STOPPED = 'id="ratelimiter-stopped"'


def test_the_button_asks_first_and_then_stops(admin_client: Client) -> None:
    assert f'<a href="{SWITCH}">Stop all enforcement</a>' in shown(admin_client.get(RULES))
    page = shown(admin_client.get(SWITCH))
    assert "<h1>Stop all enforcement?</h1>" in page
    assert 'name="enforcement" value="off"' in page
    assert cache.enforcement_enabled()

    page = shown(admin_client.post(SWITCH, OFF, follow=True))
    assert not cache.enforcement_enabled()
    assert "All enforcement is stopped.</li>" in page
    assert STOPPED in page
    assert f'<a href="{SWITCH}">Resume enforcement</a>' in page
    assert LogEntry.objects.get().change_message == "All enforcement is stopped. Reason: 403 for all of Acme"
    latest = RuleSetVersion.objects.order_by("-number")[0]
    assert (latest.summary, str(latest.author)) == ("enforcement stopped", "admin")
    assert latest.reason == "403 for all of Acme"
    assert latest.reason in shown(admin_client.get(reverse("admin:django_ratelimiter_history")))

    page = shown(admin_client.get(SWITCH))
    assert "<h1>Resume enforcement?</h1>" in page
    page = shown(admin_client.post(SWITCH, ON, follow=True))
    assert cache.enforcement_enabled()
    assert "Rules are enforced again.</li>" in page
    assert STOPPED not in page


def test_two_who_confirm_at_once_do_not_undo_each_other(admin_client: Client) -> None:
    for says in ("All enforcement is stopped.", "All enforcement is stopped already."):
        assert says in shown(admin_client.post(SWITCH, OFF, follow=True))
    assert not cache.enforcement_enabled()
    assert LogEntry.objects.count() == 1


def test_a_form_that_does_not_say_which_way_does_nothing(admin_client: Client) -> None:
    assert admin_client.post(SWITCH).status_code == 400
    assert cache.enforcement_enabled()


def test_a_form_with_an_error_goes_on_saying_which_way(admin_client: Client) -> None:
    cache.switch_enforcement(False)  # by somebody else, meanwhile
    page = shown(admin_client.post(SWITCH, OFF | {"reason": "x" * 256}))
    assert ('class="errorlist"' in page, 'value="off"' in page) == (True, True)


def test_the_switch_needs_no_reason(admin_client: Client) -> None:
    assert "required" not in shown(admin_client.get(SWITCH)).partition('name="reason"')[2].partition(">")[0]
    admin_client.post(SWITCH, OFF | {"reason": " "})
    assert not cache.enforcement_enabled()
    assert LogEntry.objects.get().change_message == "All enforcement is stopped."


def test_every_page_of_ours_tells_while_it_is_stopped(admin_client: Client, rule: Rule) -> None:
    app = ["rule", "tier", "tierassignment", "accessentry", "usagebucket"]
    pages = [SWITCH, page_of(rule), reverse("admin:app_list", args=["django_ratelimiter"])]
    pages += [reverse(f"admin:django_ratelimiter_{name}_changelist") for name in app]
    assert [page for page in pages if STOPPED in shown(admin_client.get(page))] == []
    cache.switch_enforcement(False)
    assert [page for page in pages if STOPPED not in shown(admin_client.get(page))] == []


@pytest.mark.django_db(transaction=True)
def test_says_that_redis_could_not_be_told(engine_is_down: None, admin_client: Client) -> None:
    page = shown(admin_client.post(SWITCH, OFF, follow=True))
    assert "Saved, not yet in force everywhere" in page
    assert not cache.enforcement_enabled()
