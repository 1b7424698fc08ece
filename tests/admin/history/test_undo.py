"""One click from where an operator is to the page that brings back the version before the last change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion
from django_ratelimiter.rules import cache

from ..pages import RULES, BrowserForm, number, page_of, shown, text_of
from .test_history import ALL

pytestmark = pytest.mark.django_db

OVERVIEW = reverse("admin:app_list", args=["django_ratelimiter"])


def back(version: int) -> str:
    """The address of the page that asks whether to bring back a version."""
    row = RuleSetVersion.objects.get(number=version)
    return reverse("admin:django_ratelimiter_history_bring_back", args=[f"{row.number}-{row.epoch}"])


def offer(version: int) -> str:
    return f'<a href="{back(version)}">Bring back version {version}, the one before</a>'


@pytest.fixture
def good(rule: Rule) -> int:
    """The number of the version that a bad one came after."""
    cache.invalidate()
    good = number()
    with cache.editing(User.objects.create_user("ada"), "rule export saved", "Nobody needs it."):
        Rule.objects.update(mode="off")
    return good


def test_is_offered_where_the_operator_is(admin_client: Client, rule: Rule, good: int) -> None:
    for page, says in (
        (OVERVIEW, ", by ada What"),
        (RULES, "The rules changed less than a minute ago, by ada."),
        (page_of(rule), "This rule changed less than a minute ago, by ada."),
    ):
        response = admin_client.get(page)
        assert offer(good) in shown(response), page
        assert f"{says} Rule “Export”: Mode: enforce → off" in text_of(response), page
    for page in (page_of(rule, "history"), reverse("admin:django_ratelimiter_history_version", args=[good + 1])):
        assert f"Bring back version {good}, the one before" in text_of(admin_client.get(page)), page
    assert number() == good + 1  # nothing of that has changed anything


def test_the_way_back_is_not_taken_back(admin_client: Client, rule: Rule, good: int) -> None:
    """Else the next one who presses the button repeats the mistake. What is changed afterwards has its own way back."""
    admin_client.post(back(good), BrowserForm(shown(admin_client.get(back(good)))).sent)
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert "the one before" not in text_of(admin_client.get(page)), page
    with cache.editing(None, "again"):
        Rule.objects.filter(pk=rule.pk).update(priority=7)
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert offer(good + 2) in shown(admin_client.get(page)), page


def test_passes_by_what_cannot_be_brought_back(admin_client: Client, admin_user: User, rule: Rule, good: int) -> None:
    """Who has stopped all enforcement first, or reset counters, looks for the bad rule all the same."""
    cache.switch_enforcement(False, admin_user)
    with cache.editing(admin_user, "counters"):
        RuleLimit.objects.update(generation=7)
    cache.invalidate(admin_user)
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert offer(good) in shown(admin_client.get(page))


def test_an_older_change_is_offered_by_the_overview_alone(admin_client: Client, rule: Rule, good: int) -> None:
    RuleSetVersion.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert offer(good) in shown(admin_client.get(OVERVIEW))
    assert "by ada What Rule “Export”: Mode: enforce → off" in text_of(admin_client.get(OVERVIEW))
    for page in (RULES, page_of(rule)):
        assert "the one before" not in text_of(admin_client.get(page))


@pytest.mark.parametrize("lacking", ["publish_rule", "view_rule"])
def test_is_offered_to_whom_may_do_it(operator: Callable[..., Client], rule: Rule, good: int, lacking: str) -> None:
    client = operator(*({*ALL, "view_usagebucket", "view_usage_report"} - {lacking, "change_rule"}))
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert "the one before" not in shown(client.get(page)), page


def test_nothing_is_offered_where_nothing_is_stored_before(admin_client: Client, rule: Rule) -> None:
    for _ in range(2):
        for page in (OVERVIEW, RULES, page_of(rule)):
            assert "the one before" not in text_of(admin_client.get(page))
        cache.invalidate()  # the oldest version: nobody can tell what it changed


def test_is_looked_for_in_the_latest_few_only(admin_client: Client, rule: Rule, good: int) -> None:
    costs = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(page_of(rule))
        costs.append(len(queries))
        for _ in range(12):
            cache.invalidate()
    assert costs[1] <= costs[0]
    assert "the one before" not in text_of(admin_client.get(page_of(rule)))
