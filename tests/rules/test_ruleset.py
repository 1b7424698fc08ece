"""Matching, and the building of a rule set from a snapshot."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Limit
from django_ratelimiter.rules import ruleset
from django_ratelimiter.rules.records import LimitRecord, TierRecord
from django_ratelimiter.rules.ruleset import Facts, RuleSet

from .build import limit_data, rule_data, snapshot


def matched(facts: Facts, *rules: dict[str, Any]) -> list[str]:
    return [rule.slug for rule in RuleSet.from_snapshot(snapshot(*rules)).match(facts)]


REQUEST = Facts("GET", "/api/items/7/", "api/items/<int:pk>/", "api:item", "")


@pytest.mark.parametrize(
    ("fields", "meets"),
    [
        ({}, True),
        ({"methods": ["GET"]}, True),
        ({"methods": ["POST"]}, False),
        ({"path_kind": "exact", "path": "/api/items/7/"}, True),
        ({"path_kind": "prefix", "path": "/api/"}, True),
        ({"path_kind": "prefix", "path": "/api/items/7/and/more/"}, False),
        ({"path_kind": "route", "path": "api/items/<int:pk>/"}, True),
        ({"path_kind": "route", "path": "api/items/"}, False),
        ({"view_name": "api:item"}, True),
        ({"view_name": "item"}, False),
        ({"scope": "uploads"}, False),
        ({"path_kind": "prefix", "path": "/api/", "view_name": "other"}, False),
        ({"mode": "shadow"}, True),
        ({"mode": "off"}, False),
    ],
)
def test_a_rule_meets_a_request_when_all_its_conditions_hold(fields: dict[str, Any], meets: bool) -> None:
    assert matched(REQUEST, rule_data(**fields)) == (["rule"] if meets else [])


def test_a_scope_is_met_only_where_it_is_named() -> None:
    rules = rule_data("everywhere"), rule_data("uploads", scope="uploads"), rule_data("mail", scope="mail")
    assert matched(REQUEST._replace(scope="uploads"), *rules) == ["everywhere", "uploads"]


def test_a_rule_for_get_covers_head() -> None:
    assert matched(REQUEST._replace(method="HEAD"), rule_data(methods=["GET"])) == ["rule"]


def test_matches_come_by_priority_then_slug() -> None:
    rules = (
        rule_data("c"),
        rule_data("b", path_kind="prefix", path="/"),
        rule_data("a", priority=200),
        rule_data("z", priority=-5, view_name="api:item"),
    )
    assert matched(REQUEST, *rules) == ["z", "b", "c", "a"]


words = st.sampled_from(["", "/", "/a", "/a/", "/a/b", "/b/"])


@given(
    several=st.lists(
        st.builds(
            Facts, st.sampled_from(["GET", "POST", "HEAD"]), words, words, words, st.sampled_from(["", "s", "t"])
        ),
        min_size=1,
        max_size=8,
    ),
    conditions=st.lists(
        st.fixed_dictionaries(
            {
                "methods": st.lists(st.sampled_from(["GET", "POST"]), unique=True),
                "path_kind": st.sampled_from(["any", "exact", "prefix", "route"]),
                "path": words,
                "view_name": words,
                "scope": st.sampled_from(["", "s"]),
                "priority": st.integers(0, 3),
            }
        ),
        max_size=12,
    ),
)
def test_the_index_finds_what_a_look_at_every_rule_finds(
    several: list[Facts], conditions: list[dict[str, Any]]
) -> None:
    rules = RuleSet.from_snapshot(snapshot(*(rule_data(f"r{i}", **fields) for i, fields in enumerate(conditions))))
    for facts in several:  # what one of them meets is remembered while the next is looked up
        assert rules.match(facts) == tuple(rule for rule in rules.rules if not rule.mismatch(facts))


def test_what_is_remembered_tells_beginnings_of_paths_apart_also_where_an_exact_path_is_shorter() -> None:
    for further in ([], [rule_data("home", path_kind="exact", path="/")]):
        rules = RuleSet.from_snapshot(snapshot(*further, rule_data("api", path_kind="prefix", path="/api/")))
        for path, met in (("/blog/1/", []), ("/api/1/", ["api"]), ("/apis/1/", [])):
            assert [rule.slug for rule in rules.match(Facts("GET", path))] == met


def test_what_is_remembered_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruleset, "MAX_REMEMBERED", 3)
    rules = ruleset.RuleIndex(RuleSet.from_snapshot(snapshot(rule_data(path_kind="prefix", path="/api/"))).rules)
    for number in range(10):
        rules.match(Facts("GET", f"/api/items/{number}/"))
    assert len(rules._remembered) == 1, "their paths begin alike"
    for number in range(10):
        rules.match(Facts("GET", f"/{number}/items/"))
        assert len(rules._remembered) <= 3


def test_requests_that_meet_the_same_rules_share_one_tuple_however_many_paths_they_ask_for() -> None:
    rules = RuleSet.from_snapshot(
        snapshot(rule_data("all"), rule_data("pages", path_kind="prefix", path="/blog/archive/old/"))
    )
    made = [rules.match(Facts("GET", f"/blog/{number}/")) for number in range(ruleset.MAX_REMEMBERED + 1_000)]
    assert {tuple(rule.slug for rule in met) for met in made} == {("all",)}
    assert len({id(met) for met in made}) == 1, "by which templates are kept"


def test_methods_that_a_client_makes_up_are_of_one_kind() -> None:
    rules = ruleset.RuleIndex(
        RuleSet.from_snapshot(snapshot(rule_data("read", methods=["GET"]), rule_data("any"))).rules
    )
    for method, slugs in (("A" * 9_000, ["any"]), ("B" * 9_000, ["any"]), ("GET", ["any", "read"])):
        assert [rule.slug for rule in rules.match(Facts(method, "/"))] == slugs
    assert len(rules._remembered) == 2


def test_sets_of_rules_that_are_shared_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruleset, "MAX_REMEMBERED", 3)
    names = ("a", "b", "c", "d", "e")
    rules = ruleset.RuleIndex(
        RuleSet.from_snapshot(snapshot(*(rule_data(name, path_kind="exact", path=f"/{name}/") for name in names))).rules
    )
    for name in (*names, "a"):
        assert [rule.slug for rule in rules.match(Facts("GET", f"/{name}/"))] == [name]
        assert len(rules._shared) <= 3


def test_a_tier_has_its_own_limits_else_those_of_every_other_tier() -> None:
    limits = [
        limit_data(tier="free", quota=10),
        limit_data(tier="free", quota=50, window_seconds="3600"),
        limit_data(tier="staff", unlimited=True, quota=None, window_seconds=None),
        limit_data(quota=3),
    ]
    rule = RuleSet.from_snapshot(snapshot(rule_data(limits=limits))).rules[0]

    def tier(slug: str) -> TierRecord:
        return TierRecord(slug, slug, 0, "none")

    minute, hour = LimitRecord(Limit(10, 60, "fixed_window")), LimitRecord(Limit(50, 3600, "fixed_window"))
    assert rule.limits_for(tier("free")) == (minute, hour)
    assert rule.limits_for(tier("staff")) == ()
    assert rule.limits_for(tier("other")) == rule.limits_for(None) == (LimitRecord(Limit(3, 60, "fixed_window")),)


def test_a_tier_that_no_limit_names_does_not_meet_the_rule() -> None:
    rule = RuleSet.from_snapshot(snapshot(rule_data(limits=[limit_data(tier="free")]))).rules[0]
    assert rule.limits_for(None) == ()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mode": "maybe"}, "mode"),
        ({"partition_by": ["shoe size"]}, "partition_by"),
        ({"partition_by": "user"}, "partition_by"),
        ({"cost": 0}, "cost"),
        ({"limits": [limit_data(algorithm="magic")]}, "algorithm"),
        ({"limits": [limit_data(window_seconds="NaN")]}, "window"),
        ({"limits": [limit_data(), limit_data(quota=5)]}, "limits"),
        ({"limits": [limit_data(), limit_data(generation=1)]}, "limits"),
        ({"limits": [limit_data(max_delay_ms=-1)]}, "max_delay_ms"),
        ({"limits": [limit_data(generation="x")]}, "generation"),
        ({"count_refusals": None}, "count_refusals"),
        ({"charge_when": "never"}, "charge_when"),
    ],
)
def test_a_bad_rule_is_left_out_and_the_rest_lives(fields: dict[str, Any], reason: str) -> None:
    rules = RuleSet.from_snapshot(snapshot(rule_data("good"), rule_data("bad", **fields)))
    assert [rule.slug for rule in rules.rules] == ["good"]
    assert [left.rule for left in rules.left_out] == ["bad"]
    assert rules.left_out[0].reason.startswith(reason)


def test_a_limit_has_what_entry_points_need_beside_it() -> None:
    limits = [limit_data(max_delay_ms=1500, generation=3)]
    rule = RuleSet.from_snapshot(snapshot(rule_data(limits=limits, count_refusals=True, charge_when="failure"))).rules[
        0
    ]
    assert rule.limits_for(None) == (LimitRecord(Limit(100, 60, "fixed_window"), max_delay=1.5, generation=3),)
    assert rule.count_refusals
    assert rule.charge_when == "failure"


def test_a_snapshot_of_the_first_version_still_loads() -> None:
    entry = {"tier": None, "algorithm": "fixed_window", "quota": 1, "window_seconds": "60.000000", "unlimited": False}
    rules = RuleSet.from_snapshot(snapshot(rule_data(limits=[entry | {"burst": None, "soft_quota": None}])))
    [rule] = rules.rules
    assert rules.enforced
    assert rule.limits_for(None) == (LimitRecord(Limit(1, 60, "fixed_window"), max_delay=0.0, generation=0),)
    assert not rule.count_refusals
    assert rule.charge_when == "any"


def test_a_request_of_the_rules_cost_can_still_pass() -> None:
    data = rule_data(cost=5, partition_by=["ip"], limits=[limit_data(quota=10)])
    rule = RuleSet.from_snapshot(snapshot(data)).rules[0]
    assert rule.limits_for(None, Decimal("0.1"))[0].limit.capacity == 5
    assert rule.limits_for(None)[0].limit.capacity == rule.limits_for(None, Decimal(1))[0].limit.capacity == 10


def test_what_lets_nobody_pass_is_not_opened() -> None:
    data = rule_data(cost=2, partition_by=["ip"], limits=[limit_data(quota=1)])
    rule = RuleSet.from_snapshot(snapshot(data)).rules[0]
    assert rule.limits_for(None, Decimal(5)) == rule.limits_for(None)
