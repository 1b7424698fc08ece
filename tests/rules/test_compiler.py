"""Rows to snapshot: what a good row becomes, and that a bad one costs its own rule alone."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.rules.ruleset import Facts, RuleSet
from django_ratelimiter.rules.stored.compiler import reasons_against, snapshot_of_rows

pytestmark = pytest.mark.django_db

sqlite_only = pytest.mark.skipif(
    "connection.vendor != 'sqlite'", reason="only SQLite holds a text in a number's column"
)


@pytest.fixture
def tiers() -> dict[str, Tier]:
    """Two tiers, by slug."""
    return {
        "free": Tier.objects.create(slug="free", name="Free", rank=1, default_for="anonymous"),
        "pro": Tier.objects.create(slug="pro", name="Pro", rank=2),
    }


@pytest.fixture
def rules(tiers: dict[str, Tier]) -> tuple[Rule, Rule]:
    """A rule to be spoilt, and one that must live."""
    fields = {"path": "items/<int:item>/", "path_kind": "route", "methods": ["GET"], "partition_by": ["ip"]}
    bad = Rule.objects.create(slug="bad", name="Bad", mode="enforce", **fields)
    good = Rule.objects.create(slug="good", name="Good", path="/api/", path_kind="prefix", priority=7, mode="enforce")
    for rule in (bad, good):
        RuleLimit.objects.create(rule=rule, tier=tiers["free"], quota=10, window_seconds=60)
        RuleLimit.objects.create(rule=rule, tier=tiers["pro"], unlimited=True)
        RuleLimit.objects.create(rule=rule, quota=5, window_seconds="0.25", algorithm="token_bucket", burst=8)
    return bad, good


def spoil(rule: Rule, table: str, column: str, value: Any) -> None:
    """Put a value in by SQL, past all forms: into the rule's row, or into its limit of the tier "free"."""
    where = "id = %s" if table == "rule" else "rule_id = %s AND quota = 10"
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_ratelimiter_{table} SET {column} = %s WHERE {where}", [value, rule.pk])
        assert cursor.rowcount == 1


def test_writes_what_a_rule_set_is_built_from(rules: tuple[Rule, Rule]) -> None:
    snapshot = snapshot_of_rows()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["tiers"] == [
        {"slug": "free", "name": "Free", "rank": 1, "default_for": "anonymous"},
        {"slug": "pro", "name": "Pro", "rank": 2, "default_for": "none"},
    ]
    assert snapshot["left_out"] == []
    assert [rule["slug"] for rule in snapshot["rules"]] == ["good", "bad"]
    assert snapshot["rules"][1] == {
        "slug": "bad",
        "name": "Bad",
        "mode": "enforce",
        "methods": ["GET"],
        "path": "items/<int:item>/",
        "path_kind": "route",
        "view_name": "",
        "scope": "",
        "partition_by": ["ip"],
        "missing_partition": "skip",
        "failure_policy": "local",
        "cost": 1,
        "priority": 100,
        "message": "",
        "description": "",
        "owner": "admin",
        "charge_when": "any",
        "count_refusals": False,
        "exact_usage": False,
        "sync_interval_ms": None,
        "limits": [
            limit("free", quota=10, window_seconds="60.000000"),
            limit("pro", unlimited=True),
            limit(None, quota=5, window_seconds="0.250000", algorithm="token_bucket", burst=8),
        ],
    }


def limit(tier: str | None, **values: Any) -> dict[str, Any]:
    """A limit as it stands in a snapshot."""
    empty: dict[str, Any] = dict.fromkeys(("quota", "window_seconds", "burst", "soft_quota", "slots", "anchor_day"))
    empty |= {"anchor": "clock", "refill": "continuous", "calendar": "", "timezone": "", "max_delay_ms": 0}
    return {"tier": tier, "algorithm": "sliding_window_counter", "unlimited": False, "generation": 0} | empty | values


def test_limits_stand_in_the_order_in_which_they_were_added(rules: tuple[Rule, Rule]) -> None:
    """The fields name them in that order, so that a limit added later renames none."""
    for seconds in (3600, 1, 60):
        RuleLimit.objects.create(rule=rules[1], quota=5, window_seconds=seconds)
    [good] = [rule for rule in snapshot_of_rows()["rules"] if rule["slug"] == "good"]
    windows = [entry["window_seconds"] for entry in good["limits"] if entry["tier"] is None]
    assert windows == ["0.250000", "3600.000000", "1.000000", "60.000000"]


def test_asks_the_same_number_of_queries_however_many_rules(
    rules: tuple[Rule, Rule], tiers: dict[str, Tier], django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(3):
        snapshot_of_rows()
    for number in range(20):
        rule = Rule.objects.create(slug=f"rule-{number}", name="Another", mode="enforce")
        RuleLimit.objects.create(rule=rule, tier=tiers["free"], quota=10, window_seconds=60)
    with django_assert_num_queries(3):
        assert len(snapshot_of_rows()["rules"]) == 22


@pytest.mark.parametrize(
    ("table", "column", "value", "says"),
    [
        ("rulelimit", "algorithm", "magic", "Algorithm: 'magic' is unknown"),
        ("rule", "cost", 9, "This would reject every request"),
        ("rule", "slug", "b|d", "Slug: "),
        ("rule", "mode", "panic", "Mode: "),
        ("rule", "path_kind", "glob", "Path matches: "),
        ("rule", "methods", '{"GET": 1}', "Methods: Must be a list"),
        ("rule", "methods", "[1]", "Methods: 1 is unknown"),
        ("rule", "partition_by", "[[]]", "Counted by: [] is unknown"),
        ("rule", "partition_by", "7", "Counted by: Must be a list"),
        pytest.param("rulelimit", "window_seconds", "a while", "Window in seconds: ", marks=sqlite_only),
        pytest.param("rulelimit", "window_seconds", 1e30, "Window in seconds: ", marks=sqlite_only),
        pytest.param("rulelimit", "quota", inf, "A number cannot be read", marks=sqlite_only),
        pytest.param("rule", "cost", "dear", "Cost: ", marks=sqlite_only),
    ],
)
def test_a_bad_row_costs_its_own_rule_alone(  # `tests/models/test_rules.py` has all that forms reject
    rules: tuple[Rule, Rule], table: str, column: str, value: Any, says: str
) -> None:
    bad, good = rules
    spoil(bad, table, column, value)
    snapshot = snapshot_of_rows()
    assert [rule["slug"] for rule in snapshot["rules"]] == ["good"]
    (left_out,) = snapshot["left_out"]
    bad.refresh_from_db()
    assert left_out["rule"] == bad.slug
    assert says in left_out["reason"]
    assert reasons_against(bad)
    assert " ".join(reasons_against(bad)) == left_out["reason"]
    assert reasons_against(good) == []
    ruleset = RuleSet.from_snapshot(snapshot)
    assert [rule.slug for rule in ruleset.match(Facts("GET", "/api/"))] == ["good"]


def test_the_reason_names_the_limit(rules: tuple[Rule, Rule]) -> None:
    spoil(rules[0], "rulelimit", "window_seconds", 0)
    (reason,) = reasons_against(rules[0])
    assert reason.startswith("Limit “free: 10/0")


def test_a_bad_tier_costs_the_rules_that_limit_it(rules: tuple[Rule, Rule], tiers: dict[str, Tier]) -> None:
    bad, good = rules
    RuleLimit.objects.filter(rule=good, tier=tiers["pro"]).delete()
    Tier.objects.filter(slug="pro").update(slug="p|o")
    snapshot = snapshot_of_rows()
    assert [tier["slug"] for tier in snapshot["tiers"]] == ["free"]
    assert [rule["slug"] for rule in snapshot["rules"]] == ["good"]
    assert "Slug: " in snapshot["left_out"][0]["reason"]
    assert reasons_against(bad) == [snapshot["left_out"][0]["reason"]]


@pytest.mark.skipif("not connection.features.supports_forward_references", reason="references are checked at once")
def test_a_limit_whose_tier_is_gone_is_not_every_other_tiers(rules: tuple[Rule, Rule]) -> None:
    """As it is for a moment while a tier is being deleted; references are checked at the commit."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_ratelimiter_rulelimit SET tier_id = 987654 WHERE quota = 10")
    (reason,) = reasons_against(rules[0])
    assert reason.endswith(": Its tier no longer exists.")
    RuleLimit.objects.all().delete()


def test_what_only_the_form_asks_for_keeps_nothing_out_of_force(rules: tuple[Rule, Rule]) -> None:
    Rule.objects.filter(slug="bad").update(name="", message="x" * 299, description="")
    assert snapshot_of_rows()["left_out"] == []


def test_looking_changes_nothing(rules: tuple[Rule, Rule]) -> None:
    Rule.objects.filter(slug="bad").update(path="/items/<int:item>/")
    rule = Rule.objects.get(slug="bad")
    assert reasons_against(rule) == []
    assert rule.path == "/items/<int:item>/"
    assert snapshot_of_rows()["rules"][1]["path"] == "items/<int:item>/"
