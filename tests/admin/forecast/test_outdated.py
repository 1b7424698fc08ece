"""A forecast of a form that does not fit the saved rule: others have changed it, or all limits are to be deleted."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_ratelimiter.models import Rule
from tests.forecast.traffic import record

from ..pages import BrowserForm, page_of, shown
from .test_panel import tiers_of, yesterday

pytestmark = pytest.mark.django_db

STOPPED = "Nothing was saved: somebody else has changed this since you opened it."
CHANGED = "Somebody else has changed this rule since you opened it."
BUTTON = 'name="_forecast"'


@pytest.fixture
def sent(admin_client: Client, rule: Rule) -> dict[str, Any]:
    """What a browser would send that has opened the rule."""
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    record(yesterday(), {"aaa": [40], "bbb": [12]}, rule="export", tier="free")
    return BrowserForm(shown(admin_client.get(page_of(rule)))).sent


def test_no_forecast_comes_between_a_conflict_and_its_answer(
    admin_client: Client, rule: Rule, sent: dict[str, Any]
) -> None:
    Rule.objects.filter(pk=rule.pk).update(name="Theirs")
    for query in ("", "?_forecast=1"):
        page = shown(admin_client.post(f"{page_of(rule)}{query}", sent))
        assert STOPPED in page
        assert BUTTON not in page


def test_a_limit_that_somebody_else_has_deleted(admin_client: Client, rule: Rule, sent: dict[str, Any]) -> None:
    rule.limits.get(tier=None).delete()
    response = admin_client.post(page_of(rule), sent | {"_forecast": "1", "limits-0-quota": "30"})
    page = shown(response)
    assert CHANGED in page
    assert "errornote" not in page
    assert response.context["forecast"]["periods"]
    assert STOPPED in shown(admin_client.post(page_of(rule), BrowserForm(page).sent))
    assert [limit.quota for limit in rule.limits.all()] == [100]


def test_a_rule_whose_limits_are_all_to_be_deleted(admin_client: Client, rule: Rule, sent: dict[str, Any]) -> None:
    rule.limits.filter(tier__slug="free").update(quota=30)
    sent = BrowserForm(shown(admin_client.get(page_of(rule)))).sent
    ticked = {"limits-0-DELETE": "on", "limits-1-DELETE": "on", "_forecast": "1"}
    [tier] = tiers_of(admin_client.post(page_of(rule), sent | ticked)).values()
    assert (tier["after_requests"], tier["no_longer"][:8]) != (tier["before_requests"], "about 0 ")
    assert tier["newly"] == "0" or tier["newly"].startswith("about 0 ")
    assert tier["after_callers"].startswith(("0", "about 0 "))


@pytest.mark.django_db(transaction=True)
def test_a_forecast_opens_no_transaction(admin_client: Client, rule: Rule, sent: dict[str, Any]) -> None:
    """On SQLite it would keep others from writing."""
    with CaptureQueriesContext(connection) as queries:
        assert admin_client.post(page_of(rule), sent | {"_forecast": "1"}).status_code == 200
    assert [each["sql"] for each in queries if each["sql"].startswith(("BEGIN", "SAVEPOINT"))] == []
