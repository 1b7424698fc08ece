"""The fields of a limit that its algorithm uses, what is told while they are typed, and what each more limit costs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ratelimiter.engine import Algorithm
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.models.limits import NOT_GIVEN, columns_used
from django_ratelimiter.rules import cache

from ..pages import ADD_RULE, errors_of, page_of, rule_form, shown, stored

pytestmark = pytest.mark.django_db

SENTENCES = reverse("admin:django_ratelimiter_rule_sentences")

#: A value for every column, none of which is its default.
EVERYTHING = {
    "quota": 5,
    "window_seconds": "60",
    "burst": 9,
    "soft_quota": 2,
    "slots": 7,
    "anchor": "first_request",
    "refill": "interval",
    "calendar": "month",
    "timezone": "Asia/Tokyo",
    "anchor_day": 31,
    "max_delay_ms": 250,
}


class TestUnused:
    @pytest.mark.parametrize("calendar", ["", "month", "year"])
    @pytest.mark.parametrize("algorithm", Algorithm)
    def test_what_the_page_hides_is_dropped(self, admin_client: Client, algorithm: str, calendar: str) -> None:
        assert set(EVERYTHING) == set(NOT_GIVEN)
        sent = rule_form(EVERYTHING | {"algorithm": algorithm, "calendar": calendar})
        assert admin_client.post(ADD_RULE, sent).status_code == 302
        limit = RuleLimit.objects.get()
        used = columns_used(algorithm, calendar)
        for column, absent in NOT_GIVEN.items():
            given = EVERYTHING[column] if column != "calendar" else calendar
            kept = getattr(limit, column)
            assert str(kept) == str(given if column in used else absent) or kept == Decimal(60), column
        limit.full_clean()

    def test_unlimited_drops_everything(self, admin_client: Client) -> None:
        assert admin_client.post(ADD_RULE, rule_form(EVERYTHING | {"unlimited": "on"})).status_code == 302
        limit = RuleLimit.objects.get()
        assert {column: getattr(limit, column) for column in NOT_GIVEN} == dict(NOT_GIVEN)

    def test_what_cannot_be_read_there_is_no_fault(self, admin_client: Client) -> None:
        limit = {"quota": 5, "window_seconds": "60", "burst": "many", "slots": "-1", "refill": "magic"}
        assert admin_client.post(ADD_RULE, rule_form(limit)).status_code == 302
        errors = errors_of(admin_client.post(ADD_RULE, rule_form(limit | {"algorithm": "token_bucket"})))
        assert set(errors["limits"][0]) == {"burst", "refill"}

    def test_another_algorithm_leaves_nothing_of_the_first(self, admin_client: Client, rule: Rule) -> None:
        first, second = rule.limits.all()
        RuleLimit.objects.filter(pk=first.pk).update(algorithm="token_bucket", burst=200, refill="interval")
        changed, other = stored(first, second)
        changed |= {"burst": 200, "refill": "interval", "algorithm": "sliding_window_log"}
        assert admin_client.post(page_of(rule), rule_form(changed, other, stored=2)).status_code == 302
        first.refresh_from_db()
        assert (first.algorithm, first.burst, first.refill) == ("sliding_window_log", None, "continuous")


class TestPage:
    def test_the_server_says_which_fields_an_algorithm_uses(self, admin_client: Client) -> None:
        page = shown(admin_client.get(ADD_RULE))
        found = re.search(r'data-columns="(\{.*?\})" data-numbers="(\[.*?\])"', page)
        assert found
        columns, numbers = json.loads(found[1]), json.loads(found[2])
        assert numbers == list(NOT_GIVEN)
        assert list(columns) == list(Algorithm)
        assert columns["leaky_bucket"] == {"": ["burst", "max_delay_ms", "quota", "soft_quota", "window_seconds"]}
        assert set(columns["fixed_window"]) == {"", "day", "week", "month", "year"}
        for fields in [fields for by_calendar in columns.values() for fields in by_calendar.values()]:
            for field in fields:
                assert f'name="limits-0-{field}"' in page

    def test_zones_are_suggested(self, admin_client: Client) -> None:
        page = shown(admin_client.get(ADD_RULE))
        assert "<option>Europe/Berlin</option>" in page
        assert 'list="ratelimiter-timezones"' in page

    @pytest.mark.parametrize("owner", ["admin", "file"])
    def test_what_is_for_reading_only_is_in_words(
        self, operator: Callable[..., Client], rule: Rule, owner: str
    ) -> None:
        Rule.objects.filter(pk=rule.pk).update(partition_by=["ip", "header:X-Org"], methods=["GET", "PUT"], owner=owner)
        permissions = ("view_rule",) if owner == "admin" else ("view_rule", "change_rule")  # a file's rule is locked
        page = shown(operator(*permissions).get(page_of(rule)))
        assert "IP address and header X-Org" in page
        assert "GET, PUT" in page
        assert "[&quot;" not in page


class TestSentences:
    def ask(self, client: Client, **typed: Any) -> str:
        response = client.get(SENTENCES, {"algorithm": "fixed_window", "cost": 1} | typed)
        assert response.status_code == 200
        return str(response.json()["text"])

    def test_tells_what_a_limit_would_do(self, admin_client: Client) -> None:
        told = self.ask(admin_client, quota=10, window_seconds=60, partition_by=["user", "ip"], cost=2)
        assert told.startswith("Each combination of user and IP address can use 10 units per minute.")
        assert told.endswith("One request uses 2.")
        assert not Rule.objects.exists()

    def test_does_not_meet_the_rows_that_are_there(self, admin_client: Client, rule: Rule) -> None:
        limit = rule.limits.get(tier=None)
        told = self.ask(admin_client, rule=rule.pk, algorithm=limit.algorithm, quota=9, window_seconds="1")
        assert told.startswith("All callers together can use 9 units per second.")

    def test_tells_what_cannot_be_by_its_field(self, admin_client: Client) -> None:
        told = self.ask(admin_client, quota=0, window_seconds=60, tier=999)
        assert "Quota: Ensure this value is greater than or equal to 1." in told
        assert "Tier: Select a valid choice." in told

    def test_says_what_is_still_to_be_typed(self, admin_client: Client) -> None:
        for typed in ({}, {"quota": 5}, {"window_seconds": 60}):
            told = self.ask(admin_client, **typed)
            assert told == "Enter the numbers. This field then describes what the limit does."

    def test_takes_a_rule_that_cannot_be_read(self, admin_client: Client) -> None:
        told = self.ask(admin_client, quota=5, window_seconds=60, cost="a lot", partition_by=["shoe size"])
        assert told.startswith("All callers together can use 5 units per minute.")


def test_takes_no_query_for_each_limit(admin_client: Client) -> None:
    rule, made = Rule.objects.create(slug="many", name="Many"), []
    tiers = [Tier.objects.create(slug=f"t{number}", name=f"T{number}") for number in range(9)]
    for few in (tiers[:1], tiers[1:2], tiers[2:]):
        RuleLimit.objects.bulk_create(RuleLimit(rule=rule, tier=tier, quota=5, window_seconds=60) for tier in few)
        cache.invalidate()
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(page_of(rule)).status_code == 200
        made.append(len(queries))
    assert made[1] == made[2]
