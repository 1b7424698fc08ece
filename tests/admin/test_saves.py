"""Saves: one version each, and what is said where it is not in force."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Rule, RuleSetVersion, Tier

from .pages import ADD_RULE, RULES, BrowserForm, errors_of, number, page_of, rule_form, shown, stored

pytestmark = pytest.mark.django_db


class TestSave:
    def test_what_was_saved_is_stored_in_english(self, admin_client: Client, free: Tier, settings: Any) -> None:
        """Not in the language of who saved it: the next who reads it may have another."""
        settings.LANGUAGE_CODE = "de"
        admin_client.post(ADD_RULE, rule_form({"quota": 100, "window_seconds": "60"}))
        rules = [Rule.objects.get().pk]
        admin_client.post(RULES, {"action": "forget", "_selected_action": rules})
        admin_client.post(page_of(Rule.objects.get(), "delete"), {"post": "yes"})
        latest = RuleSetVersion.objects.order_by("number").values_list("summary", flat=True)
        assert [*latest][-3:] == ["rule export added", "counters reset: export", "rule Export deleted"]

    def test_adds_a_rule_with_its_limits_as_one_version(self, admin_client: Client, free: Tier) -> None:
        before = number()
        sent = rule_form(
            {"tier": free.pk, "quota": 100, "window_seconds": "60"},
            {"tier": free.pk, "quota": 9, "window_seconds": "1.5", "algorithm": "token_bucket", "burst": 12},
            {"unlimited": "on"},
        )
        response = admin_client.post(ADD_RULE, sent)
        assert (response.status_code, response["Location"]) == (302, RULES)
        rule = Rule.objects.get()
        assert (rule.methods, rule.partition_by, rule.failure_policy) == (["GET", "POST"], ["user"], "closed")
        assert [limit.in_short for limit in rule.limits.all()] == [
            "free: 9/1.5 s",
            "free: 100/min",
            "every other tier: unlimited",
        ]
        assert number() == before + 1
        version = RuleSetVersion.objects.get(number=before + 1)
        assert version.author == User.objects.get(username="admin")
        assert version.summary == "rule export added"
        assert [len(rule["limits"]) for rule in version.snapshot["rules"]] == [3]

    def test_changes_rule_and_limits_as_one_version(self, admin_client: Client, rule: Rule) -> None:
        before = number()
        limits = stored(*rule.limits.all())
        limits[0]["quota"] = 7
        limits[1]["DELETE"] = "on"
        added = {"tier": "", "quota": 3, "window_seconds": "3600", "algorithm": "fixed_window"}
        response = admin_client.post(page_of(rule), rule_form(*limits, added, stored=2, cost="2"))
        assert response.status_code == 302
        assert number() == before + 1
        (compiled,) = RuleSetVersion.objects.get(number=before + 1).snapshot["rules"]
        assert compiled["cost"] == 2
        assert [(limit["tier"], limit["quota"]) for limit in compiled["limits"]] == [("free", 7), (None, 3)]

    def test_nothing_changed_is_no_version(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        for row in (rule, free):
            page = admin_client.get(page_of(row)).content.decode()
            for _ in range(2):  # the first may make the version of what the fixtures have written
                before = number(), RuleSetVersion.objects.count()
                assert admin_client.post(page_of(row), BrowserForm(page).sent).status_code == 302
            assert (number(), RuleSetVersion.objects.count()) == before

    def test_what_is_rejected_takes_no_number(self, admin_client: Client, rule: Rule) -> None:
        before = number(), RuleSetVersion.objects.count()
        limits = stored(*rule.limits.all())
        limits[0]["quota"] = 0
        response = admin_client.post(page_of(rule), rule_form(*limits, stored=2, path="api"))
        assert set(errors_of(response)) == {"path", "limits"}
        assert (number(), RuleSetVersion.objects.count()) == before

    def test_a_tier_is_part_of_the_rule_set(self, admin_client: Client, free: Tier) -> None:
        before = number()
        sent = {"name": "Free", "slug": "free", "rank": "3", "default_for": "anonymous"}
        assert admin_client.post(page_of(free), sent).status_code == 302
        assert number() == before + 1
        assert RuleSetVersion.objects.get(number=number()).snapshot["tiers"][0]["rank"] == 3

    def test_deleting_is_one_version(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        before = number()
        warning = shown(admin_client.get(page_of(free, "delete")))
        assert "Limit: export, free: 100/min" in warning  # it goes along
        assert admin_client.post(page_of(rule, "delete"), {"post": "yes"}).status_code == 302
        assert number() == before + 1
        other = Tier.objects.create(slug="pro", name="Pro")
        before = number()
        action = {"action": "delete_selected", "_selected_action": [free.pk, other.pk], "post": "yes"}
        assert admin_client.post(reverse("admin:django_ratelimiter_tier_changelist"), action).status_code == 302
        assert (number(), Tier.objects.count()) == (before + 1, 0)
        assert RuleSetVersion.objects.get(number=number()).summary == "tiers deleted: Pro, Free"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("atomic_requests", [False, True])
    def test_says_when_it_is_not_in_force_everywhere(
        self,
        admin_client: Client,
        rule: Rule,  # published, before the engine goes
        engine_is_down: None,
        monkeypatch: pytest.MonkeyPatch,
        atomic_requests: bool,
    ) -> None:
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic_requests)
        sent = rule_form(*stored(*rule.limits.all()), stored=2, name="New")
        response = admin_client.post(page_of(rule), sent, follow=True)
        assert "Saved, not yet in force everywhere" in shown(response)
        assert Rule.objects.get().name == "New"
