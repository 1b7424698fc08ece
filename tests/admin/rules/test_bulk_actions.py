"""The actions of the list of rules cost as many queries for fifty rules as for five."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models.signals import post_save, pre_save
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion
from django_ratelimiter.rules import cache

from ..pages import RULES, number

pytestmark = pytest.mark.django_db


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
