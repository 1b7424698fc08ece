"""The list of rules: words, reasons, actions and what these cost, and rules written in code."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connection
from django.db.models.signals import post_save, pre_save
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from rest_framework.request import Request
from rest_framework.views import APIView

from django_ratelimiter.admin.rules import admin as rule_pages
from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion, Tier
from django_ratelimiter.rules import cache, inline
from django_ratelimiter.throttling import AnonRateThrottle

from ..pages import ADD_RULE, RULES, number, page_of, shown

pytestmark = pytest.mark.django_db


class TestList:
    def test_tells_the_limits_of_each_tier_in_short(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        pro = Tier.objects.create(slug="pro", name="Pro", rank=2)
        rule.limits.create(tier=pro, quota=1_000, window_seconds=3_600)
        rule.limits.create(tier=pro, quota=2, window_seconds=60, algorithm="concurrency")
        page = re.sub(r"<[^>]*>", "", shown(admin_client.get(RULES))).replace(rule_pages.NO_BREAK, " ")
        assert "free 100/min, pro 1,000/h + 2 at once, others 5/s" in page

    def test_tells_mode_place_and_limits_in_words(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        RuleLimit.objects.filter(tier=None).delete()
        RuleLimit.objects.create(rule=rule, tier=Tier.objects.create(slug="pro", name="Pro", rank=2), unlimited=True)
        page = shown(admin_client.get(RULES))
        assert "free: 100 per minute, sliding window; pro: unlimited" in page
        assert "/api/export/…" in page
        assert ">enforce<" in page
        assert '<td class="field-counted_by">all callers together</td>' in page

    def test_a_rule_that_only_the_replica_of_the_list_still_has(
        self, admin_client: Client, rule: Rule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled = rule_pages.snapshot_of_rows()
        Rule.objects.create(slug="deleted", name="Deleted in the primary, not yet in the replica")
        monkeypatch.setattr(rule_pages, "snapshot_of_rows", lambda *_rows: compiled)
        assert "Deleted in the primary" in shown(admin_client.get(RULES))

    @pytest.mark.parametrize("query", ["q=export", "mode__exact=enforce", "limits__tier__id__exact={free}"])
    def test_finds_and_filters(self, admin_client: Client, rule: Rule, free: Tier, query: str) -> None:
        Rule.objects.create(slug="other", name="Other", mode="off")
        response = admin_client.get(f"{RULES}?{query.format(free=free.pk)}")
        assert [found.slug for found in response.context["cl"].result_list] == ["export"]

    def test_a_site_without_tiers_is_not_told_of_other_tiers(self, admin_client: Client) -> None:
        assert ">everyone</option>" in shown(admin_client.get(ADD_RULE))
        Tier.objects.create(slug="free", name="Free", rank=1)
        page = shown(admin_client.get(ADD_RULE))
        assert ">every other tier</option>" in page
        assert ">everyone</option>" not in page


class TestLeftOut:
    @pytest.fixture(
        params=[
            ("rulelimit", "algorithm", "magic", "is unknown"),
            ("rule", "path_kind", "glob", "not a valid choice"),
            ("rule", "methods", '{"GET": 1}', "must be a list"),
        ]
    )
    def reason(self, request: pytest.FixtureRequest, rule: Rule) -> str:
        """Spoils the rule by SQL; what is said of it."""
        table, column, value, reason = request.param
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE django_ratelimiter_{table} SET {column} = %s", [value])
        return reason

    def test_the_list_and_the_rules_page_say_why(self, admin_client: Client, rule: Rule, reason: str) -> None:
        good = Rule.objects.create(slug="good", name="Good", mode="enforce")
        RuleLimit.objects.create(rule=good, quota=1, window_seconds=60)
        page = shown(admin_client.get(RULES))
        assert "Not in force." in page
        assert reason in page.lower()
        assert "everyone: 1 per minute" in page
        page = shown(admin_client.get(page_of(rule)))
        assert "This rule is not in force" in page
        assert reason in page.lower()
        assert "not in force" not in shown(admin_client.get(page_of(good)))


class TestActions:
    @pytest.mark.parametrize(("action", "mode"), [("switch_off", "off"), ("shadow", "shadow"), ("enforce", "enforce")])
    def test_saves_all_as_one_version_and_logs_each(self, admin_client: Client, action: str, mode: str) -> None:
        rules = [
            Rule.objects.create(slug=each, name=each, mode=each, scope="api") for each in ("off", "shadow", "enforce")
        ]
        before = number()
        sent = {"action": action, "_selected_action": [rule.pk for rule in rules]}
        response = admin_client.post(RULES, sent, follow=True)
        assert f"2 rules set to {mode}." in shown(response)
        assert set(Rule.objects.values_list("mode", flat=True)) == {mode}
        assert number() == before + 1
        assert RuleSetVersion.objects.get(number=number()).summary == f"rules set to {mode}"
        entries = LogEntry.objects.order_by("object_id")
        changed = [rule for rule in rules if rule.mode != mode]
        assert {entry.object_id for entry in entries} == {str(rule.pk) for rule in changed}
        assert {(entry.action_flag, entry.get_change_message()) for entry in entries} == {(CHANGE, "Changed Mode.")}


def fill(name: str, count: int, mode: str) -> list[Rule]:
    """So many rules with two limits each, of which one was reset before."""
    rules = Rule.objects.bulk_create(
        Rule(slug=f"{name}-{key}", name=f"{name} {key}", mode=mode, scope="api", partition_by=["user"])
        for key in range(count)
    )
    RuleLimit.objects.bulk_create(
        RuleLimit(rule=rule, quota=5, window_seconds=Decimal(window), generation=window)
        for rule in rules
        for window in (1, 60)
    )
    cache.invalidate()
    return rules


def act(client: Client, action: str, rules: list[Rule]) -> int:
    """Do it to these rules; returns the number of queries."""
    sent = {"action": action, "_selected_action": [rule.pk for rule in rules], "post": "yes"}
    with CaptureQueriesContext(connection) as queries:
        assert client.post(RULES, sent).status_code == 302
    return len(queries)


@pytest.mark.parametrize(
    ("action", "before"),
    [
        ("switch_off", "enforce"),
        ("shadow", "enforce"),
        ("enforce", "shadow"),
        ("forget", "enforce"),
        ("delete_selected", "enforce"),
    ],
)
def test_as_many_queries_for_twenty_rules_as_for_five(admin_client: Client, action: str, before: str) -> None:
    few, many = fill("few", 5, before), fill("many", 20, before)
    act(admin_client, action, fill("first", 1, before))  # which reads the types of content
    at, logged = number(), LogEntry.objects.count()
    costs = [act(admin_client, action, rules) for rules in (few, many)]
    assert costs[0] == costs[1] <= 31
    assert number() == at + 2
    assert RuleSetVersion.objects.filter(number__gt=at).count() == 2
    assert LogEntry.objects.count() == logged + 25


def test_signals_tell_of_each_row(admin_client: Client) -> None:
    told: list[tuple[Any, ...]] = []

    def tell(sender: type, instance: Any, update_fields: Any, **signal: Any) -> None:
        told.append((instance.pk, "created" in signal, [*update_fields]))

    rules = fill("few", 2, "enforce")
    limits = [*RuleLimit.objects.order_by("pk").values_list("pk", flat=True)]
    for model, action, column, keys in (
        (Rule, "shadow", "mode", [rule.pk for rule in rules]),
        (RuleLimit, "forget", "generation", limits),
    ):
        told.clear()
        for signal in (pre_save, post_save):
            signal.connect(tell, sender=model)
        try:
            act(admin_client, action, rules)
        finally:
            for signal in (pre_save, post_save):
                signal.disconnect(tell, sender=model)
        assert sorted(told) == sorted((key, saved, [column]) for key in keys for saved in (False, True))


def test_all_limits_of_a_rule_get_one_generation_and_other_rules_keep_theirs(admin_client: Client) -> None:
    chosen, other = fill("few", 2, "enforce"), fill("other", 1, "enforce")
    RuleLimit.objects.filter(rule=chosen[1], quota=5, window_seconds=1).update(generation=99)
    act(admin_client, "forget", chosen)
    found = [set(rule.limits.values_list("generation", flat=True)) for rule in (*chosen, *other)]
    assert found == [{61}, {100}, {1, 60}]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})


def test_are_listed_in_words(admin_client: Client, rule: Rule) -> None:
    inline.register(inline.rule_of("code:shop.order", 100, 60, "user or ip"))
    inline.register(inline.rule_of("code:shop.closed", 0, 60, "<key>", mode="shadow"))
    response = admin_client.get(RULES)
    assert [tuple(rule.values()) for rule in response.context["rules_in_code"]] == [
        ("code:shop.closed", "shadow", "shadow", "<key>", "rejects every request"),
        ("code:shop.order", "enforce", "enforce", "user or ip", "everyone: 100 per minute, sliding window, exact"),
    ]
    page = shown(response)
    assert "Rules written in code" in page
    assert "code:shop.order" in page
    assert "&lt;key&gt;" in response.content.decode()
    assert [found.slug for found in response.context["cl"].result_list] == ["export"]


def test_a_throttle_counts_by_its_caller_and_not_by_its_scope(admin_client: Client, rule: Rule) -> None:
    class Throttle(AnonRateThrottle):
        rate = "3/minute"

    Throttle().allow_request(Request(RequestFactory().get("/")), APIView())
    [listed] = admin_client.get(RULES).context["rules_in_code"]
    assert (listed["slug"], listed["counted_by"]) == ("code:anon", "caller")


def test_none_is_no_heading(operator: Callable[..., Client], rule: Rule) -> None:
    assert "written in code" not in shown(operator("view_rule").get(RULES))
