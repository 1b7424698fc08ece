"""The form of a rule and its limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client, override_settings

from django_ratelimiter.models import Rule, RuleLimit, Tier

from ..pages import ADD_RULE, BrowserForm, errors_of, page_of, rule_form, shown, stored

pytestmark = pytest.mark.django_db


class TestForm:
    def test_its_sections_are_in_the_order_of_thought(self, admin_client: Client, rule: Rule) -> None:
        for url in (ADD_RULE, page_of(rule)):
            page = shown(admin_client.get(url))
            names = re.findall(r'(?:class="fieldset-heading"|class="inline-heading")>\s*(.*?)\s*</h2>', page)
            assert names == [
                "What it applies to",
                "Who and what is counted",
                "How much: limits per tier",
                "What happens then",
                "Expert options",
            ]
            assert page.count('name="limits-TOTAL_FORMS"') == 1
            folded = page.split("<details>")[1].split("</details>")[0]
            assert set(re.findall(r'name="(\w+)"', folded)) == {
                *("cost", "count_refusals", "exact_usage", "sync_interval_ms", "priority")
            }

    def test_an_expert_option_with_an_error_is_not_folded_away(self, admin_client: Client) -> None:
        response = admin_client.post(ADD_RULE, rule_form(cost="0"))
        assert "cost" in errors_of(response)
        assert "<details>" not in shown(response)

    def test_nothing_ticked_is_an_empty_list(self, admin_client: Client, rule: Rule) -> None:
        Rule.objects.update(methods=["POST"], partition_by=["ip"])
        sent = rule_form(*stored(*rule.limits.all()), stored=2, methods=[], partition_by=[])
        assert admin_client.post(page_of(rule), sent).status_code == 302
        assert Rule.objects.values_list("methods", "partition_by").get() == ([], [])

    def test_a_limit_that_cannot_be_is_rejected_at_its_field(self, admin_client: Client) -> None:
        """`tests/models/test_rules.py` has all that cannot be."""
        (errors,) = errors_of(admin_client.post(ADD_RULE, rule_form({"quota": "5", "window_seconds": ""})))["limits"]
        assert [(field, "Required unless" in said[0], len(said)) for field, said in errors.items()] == [
            ("window_seconds", True, 1)
        ]
        assert not Rule.objects.exists()

    def test_cost_and_limits_are_raised_together(self, admin_client: Client, rule: Rule) -> None:
        limits = stored(*rule.limits.all())
        rejected = admin_client.post(page_of(rule), rule_form(*limits, stored=2, cost="6"))
        assert errors_of(rejected)["limits"] == [
            {},
            {"quota": ["This would reject every request, because one request costs 6."]},
        ]
        limits[1]["quota"] = 6
        assert admin_client.post(page_of(rule), rule_form(*limits, stored=2, cost="6")).status_code == 302

    @pytest.mark.parametrize(
        ("second", "says"),
        [
            ({"quota": "7", "window_seconds": "60.0"}, "counts in the same way"),
            ({"unlimited": "on"}, "cannot have other limits"),
        ],
    )
    def test_limits_that_contradict_each_other(
        self, admin_client: Client, free: Tier, second: dict[str, Any], says: str
    ) -> None:
        tier = {"tier": free.pk}
        sent = rule_form({"quota": "5", "window_seconds": "60"} | tier, second | tier)
        first, last = errors_of(admin_client.post(ADD_RULE, sent))["limits"]
        assert first == {}
        assert says in last["__all__"][0]
        sent["limits-0-DELETE"] = "on"
        assert admin_client.post(ADD_RULE, sent).status_code == 302

    def test_unlimited_twice(self, admin_client: Client) -> None:
        errors = errors_of(admin_client.post(ADD_RULE, rule_form({"unlimited": "on"}, {"unlimited": "on"})))
        assert [len(limit) for limit in errors["limits"]] == [0, 1]

    def test_limits_may_swap_their_windows(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        RuleLimit.objects.filter(tier=None).update(tier=free)
        first, second = rule.limits.all()
        limits = stored(first, second)
        limits[0]["window_seconds"], limits[1]["window_seconds"] = second.window_seconds, first.window_seconds
        assert admin_client.post(page_of(rule), rule_form(*limits, stored=2)).status_code == 302
        found = dict(rule.limits.values_list("pk", "window_seconds"))
        assert found == {first.pk: second.window_seconds, second.pk: first.window_seconds}

    def test_a_deleted_limit_makes_room_for_another(self, admin_client: Client, rule: Rule) -> None:
        limits = stored(*rule.limits.all())
        limits[1]["DELETE"] = "on"
        new = {"quota": "8", "window_seconds": "1"}
        assert admin_client.post(page_of(rule), rule_form(*limits, new, stored=2)).status_code == 302
        assert rule.limits.get(tier=None).quota == 8

    def test_saving_an_untouched_page_changes_nothing(self, admin_client: Client, rule: Rule) -> None:
        Rule.objects.update(methods=["POST"], partition_by=["ip"], description="One\ntwo", cost=5)
        before = list(Rule.objects.values()), list(RuleLimit.objects.values().order_by("pk"))
        sent = BrowserForm(admin_client.get(page_of(rule)).content.decode()).sent
        assert admin_client.post(page_of(rule), sent).status_code == 302
        assert (list(Rule.objects.values()), list(RuleLimit.objects.values().order_by("pk"))) == before

    @pytest.mark.parametrize(
        ("table", "column", "value"),
        [("rulelimit", "algorithm", "magic"), ("rule", "path_kind", "glob"), ("rule", "mode", "panic")],
    )
    def test_a_value_that_nobody_knows_is_not_replaced_unseen(
        self, admin_client: Client, rule: Rule, table: str, column: str, value: str
    ) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE django_ratelimiter_{table} SET {column} = %s", [value])
        sent = BrowserForm(admin_client.get(page_of(rule)).content.decode()).sent
        errors = errors_of(admin_client.post(page_of(rule), sent))
        assert column in errors or all(column in limit for limit in errors["limits"])


OWN = {"IDENTITIES": {"tenant": "tests.identity.test_values.tenant_of"}}


class TestIdentities:
    def test_those_with_a_name_are_written_and_the_others_ticked(self, admin_client: Client) -> None:
        with override_settings(RATELIMITER=settings.RATELIMITER | OWN):
            sent = rule_form(partition_by=["user", "tenant"], partition_by_others="header:X-A, ip/48,")
            assert admin_client.post(ADD_RULE, sent).status_code == 302
            rule = Rule.objects.get()
            assert rule.partition_by == ["user", "tenant", "header:X-A", "ip/48"]
            page = admin_client.get(page_of(rule)).content.decode()
            assert 'value="header:X-A, ip/48"' in page
            form = BrowserForm(page)
            admin_client.post(page_of(rule), form.sent)
            rule.refresh_from_db()
            assert rule.partition_by == ["user", "tenant", "header:X-A", "ip/48"]

    @pytest.mark.parametrize("others", ["tenant", "header:", "shoe size", "cookies:a"])
    def test_one_that_does_not_exist_is_rejected(self, others: str, admin_client: Client) -> None:
        response = admin_client.post(ADD_RULE, rule_form(partition_by_others=others))
        assert others.split(",")[0] in str(errors_of(response)["partition_by"])
