"""Rules and limits: what the database and the forms reject."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from django_ratelimiter.engine import Algorithm, Limit
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.models.limits import COLUMNS, NOT_GIVEN
from django_ratelimiter.rules import records
from django_ratelimiter.rules.records import FAILURE_POLICIES

from .rejections import assert_database_rejects, rejected

pytestmark = pytest.mark.django_db

MONTHLY: dict[str, Any] = {"algorithm": "fixed_window", "calendar": "month", "window_seconds": None}


class TestRule:
    def test_choices_are_those_of_the_rule_set(self) -> None:
        for choices, known in (
            (Rule.Mode, records.MODES),
            (Rule.PathKind, records.PATH_KINDS),
            (Rule.MissingPartition, records.MISSING_PARTITION),
            (Rule.FailurePolicy, FAILURE_POLICIES),
            (Rule.ChargeWhen, records.CHARGE_WHEN),
        ):
            assert set(choices.values) == set(known)

    def test_defaults_are_valid(self) -> None:
        Rule(slug="all", name="Everything").full_clean()

    @pytest.mark.parametrize(
        ("values", "field"),
        [
            ({"path": "api/", "path_kind": "exact"}, "path"),
            ({"path": "api/", "path_kind": "prefix"}, "path"),
            ({"path": "", "path_kind": "exact"}, "path"),
            ({"path": "", "path_kind": "route"}, "path"),
            ({"path": "/api/", "path_kind": "any"}, "path"),
            ({"methods": ["get"]}, "methods"),
            ({"methods": ["GET", "GET"]}, "methods"),
            ({"methods": "GET"}, "methods"),
            ({"methods": [["GET"]]}, "methods"),
            ({"partition_by": ["header:"]}, "partition_by"),
            ({"partition_by": ["ip", "user", "ip"]}, "partition_by"),
            ({"partition_by": {"ip": 1}}, "partition_by"),
            ({"mode": "on"}, "mode"),
            ({"charge_when": "never"}, "charge_when"),
            ({"path_kind": "glob"}, "path_kind"),
            ({"slug": "with space"}, "slug"),
        ],
    )
    def test_rejects(self, values: dict[str, Any], field: str) -> None:
        assert set(rejected(Rule(**{"slug": "api", "name": "API"} | values))) == {field}

    def test_a_request_costs_at_least_one(self) -> None:
        row = Rule(slug="api", name="API", cost=0)
        assert "cost" in rejected(row)
        assert_database_rejects("ratelimiter_rule_cost", row)

    @pytest.mark.parametrize(
        ("kind", "path", "right"), [("exact", "/api/*", "/api/"), ("prefix", "/*/x", "/"), ("prefix", "/a/v*/", "/a/v")]
    )
    def test_rejects_a_wildcard_and_says_what_is_right(self, kind: str, path: str, right: str) -> None:
        [message] = rejected(Rule(slug="api", name="API", path_kind=kind, path=path))["path"]
        assert message.endswith(f"choose “paths that start with it” and {right}.")

    @pytest.mark.parametrize(
        "route",
        [
            "items/",
            "items/<int:item>/",
            "^items/(?P<item>[0-9]+)/$",
            r"(?<!old-)items/\Z",
            "a+b/(c)/[d",
        ],
    )
    def test_takes_what_a_resolver_match_may_hold(self, route: str) -> None:
        Rule(slug="api", name="API", path_kind="route", path=route).full_clean()

    @pytest.mark.parametrize(
        "route",
        [
            "items/<int:item",
            "items/<nope:item>/",
            "items/<int:1st>/",
            "items/< item>/",
            "^items/(?P<item>[0-9]+/$",
        ],
    )
    def test_rejects_a_broken_route(self, route: str) -> None:
        assert set(rejected(Rule(slug="api", name="API", path_kind="route", path=route))) == {"path"}

    def test_knows_the_converters_that_the_urlconf_registers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from django.urls import converters

        monkeypatch.setattr(converters, "REGISTERED_CONVERTERS", {})
        converters.get_converters.cache_clear()
        row = Rule(slug="api", name="API", path_kind="route", path="items/<roman:item>/")
        assert "path" in rejected(row)

        class Patterns:
            @property
            def url_patterns(self) -> list[Any]:
                converters.REGISTERED_CONVERTERS["roman"] = converters.StringConverter()
                converters.get_converters.cache_clear()
                return []

        monkeypatch.setattr("django_ratelimiter.models.validation.get_resolver", Patterns)
        try:
            row.full_clean()
        finally:
            converters.get_converters.cache_clear()

    def test_a_route_loses_the_slash_that_no_match_has(self) -> None:
        row = Rule(slug="api", name="API", path_kind="route", path="/items/<int:item>/")
        row.full_clean()
        assert row.path == "items/<int:item>/"


class TestLimit:
    @pytest.mark.parametrize(
        ("values", "limit"),
        [
            (MONTHLY | {"anchor_day": 31}, Limit(9, None, "fixed_window", calendar="month", anchor_day=31)),
            (
                MONTHLY | {"timezone": "Asia/Tokyo", "calendar": "day"},
                Limit(9, None, "fixed_window", calendar="day", timezone="Asia/Tokyo"),
            ),
            (
                {"algorithm": "fixed_window", "anchor": "first_request"},
                Limit(9, 60, "fixed_window", anchor="first_request"),
            ),
            ({"algorithm": "token_bucket", "refill": "interval"}, Limit(9, 60, "token_bucket", refill="interval")),
            ({"algorithm": "sliding_window_slots", "slots": 6}, Limit(9, 60, "sliding_window_slots", slots=6)),
            ({"algorithm": "leaky_bucket", "burst": 20, "max_delay_ms": 500}, Limit(9, 60, "leaky_bucket", burst=20)),
            ({"algorithm": "concurrency", "soft_quota": 5}, Limit(9, 60, "concurrency", soft_quota=5)),
        ],
    )
    def test_every_option_reaches_the_engine(self, rule: Rule, values: dict[str, Any], limit: Limit) -> None:
        row = RuleLimit(**{"rule": rule, "quota": 9, "window_seconds": Decimal(60)} | values)
        row.full_clean()
        assert row.to_limit() == limit

    def test_every_option_of_the_engine_has_a_column(self) -> None:
        fields = {field.name for field in Limit.__dataclass_fields__.values()} - {"algorithm"}
        options = fields.union(*(algorithm.options for algorithm in Algorithm))
        columns = {COLUMNS.get(option, option) for option in options - {"anchor_time"}}  # of callers only
        assert columns == set(NOT_GIVEN)
        for column, absent in NOT_GIVEN.items():
            assert RuleLimit._meta.get_field(column).get_default() == absent

    def test_utc_has_one_name(self, rule: Rule) -> None:
        row = RuleLimit(rule=rule, quota=9, **MONTHLY, timezone="UTC")
        row.full_clean()
        assert row.timezone == ""

    @pytest.mark.parametrize(
        ("values", "field", "says"),
        [
            ({"quota": 0}, "quota", "Must be at least 1, not 0."),
            ({"quota": None}, "quota", "Required"),
            ({"window_seconds": None}, "window_seconds", "Required"),
            ({"window_seconds": Decimal(0)}, "window_seconds", "above 0"),
            ({"window_seconds": Decimal(367 * 86_400)}, "window_seconds", "at most"),
            ({"algorithm": "magic"}, "algorithm", "unknown"),
            ({"burst": 5}, "burst", "sliding_window_counter does not use this"),
            ({"calendar": "decade"}, "calendar", "valid choice"),
            ({"max_delay_ms": 1, "algorithm": "gcra"}, "max_delay_ms", "gcra does not use this"),
            ({"slots": 101, "algorithm": "sliding_window_slots"}, "slots", "1 to 100"),
            ({"timezone": "Asia/Tokyo", "algorithm": "fixed_window"}, "timezone", "choice of calendar"),
            ({"anchor_day": 1, "algorithm": "fixed_window"}, "anchor_day", "choice of calendar"),
            (MONTHLY | {"window_seconds": Decimal(60)}, "window_seconds", "choice of calendar"),
            (MONTHLY | {"anchor": "first_request"}, "anchor", "choice of calendar"),
            (MONTHLY | {"anchor_day": 32}, "anchor_day", "1 to 31"),
            (MONTHLY | {"calendar": "year", "anchor_day": 2}, "anchor_day", "choice of calendar"),
            (MONTHLY | {"timezone": "Europe/Atlantis"}, "timezone", "is unknown here"),
            ({"unlimited": True, "quota": None, "window_seconds": None, "slots": 3}, "slots", "Leave this empty"),
            ({"algorithm": "concurrency", "quota": 10_001}, "quota", "at most 10000"),
            ({"soft_quota": 10}, "soft_quota", "below 10"),
            ({"unlimited": True}, "quota", "Leave this empty"),
        ],
    )
    def test_maps_the_engines_rejection_to_the_field(
        self, rule: Rule, values: dict[str, Any], field: str, says: str
    ) -> None:
        row = RuleLimit(**{"rule": rule, "quota": 10, "window_seconds": Decimal(60)} | values)
        messages = rejected(row)
        assert says in messages[field][0]
        assert len(messages[field]) == 1
        assert set(messages) - {"window_seconds"} <= {field}

    @pytest.mark.parametrize(
        ("values", "field"),
        [({"quota": 4}, "quota"), ({"quota": 9, "algorithm": "token_bucket", "burst": 4}, "burst")],
    )
    def test_rejects_what_never_passes(self, rule: Rule, values: dict[str, Any], field: str) -> None:
        rule.cost = 5
        row = RuleLimit(rule=rule, window_seconds=Decimal(60), **values)
        assert rejected(row) == {field: ["This would reject every request, because one request costs 5."]}
        rule.cost = 4
        row.full_clean()

    @pytest.mark.parametrize("of_tier", [True, False])
    @pytest.mark.parametrize(
        ("values", "others"),
        [
            ({"window_seconds": Decimal(60)}, [{"window_seconds": Decimal(1)}, {"algorithm": "fixed_window"}]),
            (MONTHLY, [{"calendar": "day"}, {"anchor_day": 31}, {"timezone": "Asia/Tokyo"}]),
            (MONTHLY | {"anchor_day": 5}, [{"anchor_day": 6}]),
            ({"window_seconds": Decimal(60), "algorithm": "fixed_window"}, [{"anchor": "first_request"}]),
            ({"window_seconds": Decimal(60), "algorithm": "token_bucket"}, [{"refill": "interval"}]),
            ({"window_seconds": Decimal(60), "algorithm": "sliding_window_slots"}, [{"slots": 5}, {"slots": 11}]),
        ],
    )
    def test_one_per_tier_and_meaning(
        self, rule: Rule, tier: Tier, of_tier: bool, values: dict[str, Any], others: list[dict[str, Any]]
    ) -> None:
        values = {"rule": rule, "tier": tier if of_tier else None, "quota": 10} | values
        RuleLimit.objects.create(**values)
        for other in others:
            row = RuleLimit(**values | other)
            row.full_clean()
            row.save()
        row = RuleLimit(**values | {"quota": 20})
        assert "already" in str(rejected(row))
        assert_database_rejects("ratelimiter_limit_of_(tier|others)", row)

    @pytest.mark.parametrize(
        ("values", "same"),
        [
            ({"algorithm": "sliding_window_slots", "window_seconds": 60}, {"slots": 10}),
            (MONTHLY, {"anchor_day": 1}),
        ],
    )
    def test_a_default_by_its_name_is_the_same(self, rule: Rule, values: dict[str, Any], same: dict[str, Any]) -> None:
        RuleLimit.objects.create(rule=rule, quota=10, **values)
        row = RuleLimit(rule=rule, quota=10, **values | same)
        assert "already" in str(rejected(row))
        assert_database_rejects("ratelimiter_limit_of_others", row)

    @pytest.mark.parametrize("of_tier", [True, False])
    def test_unlimited_once(self, rule: Rule, tier: Tier, of_tier: bool) -> None:
        values: dict[str, Any] = {"rule": rule, "tier": tier if of_tier else None, "unlimited": True}
        RuleLimit.objects.create(**values)
        row = RuleLimit(**values)
        assert "unlimited already" in str(rejected(row))
        assert_database_rejects("ratelimiter_limit_unlimited_(tier|others)", row)

    @pytest.mark.parametrize(
        "values",
        [
            {"unlimited": True, "quota": 1},
            {"unlimited": True, "window_seconds": 1},
            {"unlimited": True, "burst": 1},
            {"unlimited": True, "soft_quota": 1},
            {"quota": None, "window_seconds": 1},
            {"quota": 0, "window_seconds": 1},
            {"quota": 1, "window_seconds": None},
            {"quota": 1, "window_seconds": 1, "calendar": "day"},
            {"quota": None, "calendar": "day"},
            {"unlimited": True, "calendar": "day"},
            {"unlimited": True, "max_delay_ms": 1},
            {"unlimited": True, "anchor": "first_request"},
        ],
    )
    def test_numbers_go_with_limits_only(self, rule: Rule, values: dict[str, Any]) -> None:
        assert_database_rejects("ratelimiter_limit_numbers", RuleLimit(rule=rule, **values))

    @pytest.mark.parametrize(
        ("constraint", "values"),
        [
            ("calendar", {"window_seconds": 1, "timezone": "Asia/Tokyo"}),
            ("calendar", {"window_seconds": 1, "anchor_day": 1}),
            ("calendar", {"calendar": "week", "anchor_day": 1}),
            ("calendar", {"calendar": "month", "anchor_day": 0}),
            ("calendar", {"calendar": "month", "anchor_day": 32}),
            ("slots", {"window_seconds": 1, "slots": 0}),
            ("slots", {"window_seconds": 1, "slots": 101}),
        ],
    )
    def test_options_stay_in_range(self, rule: Rule, constraint: str, values: dict[str, Any]) -> None:
        assert_database_rejects(f"ratelimiter_limit_{constraint}", RuleLimit(rule=rule, quota=1, **values))

    def test_order_of_tiers_with_the_others_last(self, rule: Rule, tier: Tier) -> None:
        low = Tier.objects.create(slug="low", name="Low", rank=0)
        for of in (None, tier, low):
            RuleLimit.objects.create(rule=rule, tier=of, quota=1, window_seconds=60)
        assert [limit.tier for limit in rule.limits.all()] == [low, tier, None]

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (Decimal("8.64E+4"), "free: 5/d"),
            (Decimal("86400.000"), "free: 5/d"),
            (172_800, "free: 5/2 d"),
            (3_600, "free: 5/h"),
            (Decimal("900"), "free: 5/15 min"),
            (90, "free: 5/90 s"),
            ("0.250", "free: 5/0.25 s"),
            (0, "free: 5/0 s"),
            ("x", "free: 5/x"),
            ("NaN", "free: 5/NaN s"),
        ],
    )
    def test_a_window_is_shown_in_its_longest_unit(self, rule: Rule, tier: Tier, seconds: Any, text: str) -> None:
        limit = RuleLimit(rule=rule, tier=tier, quota=5, window_seconds=seconds)
        assert limit.in_short.replace(tier.slug, "free") == text
        assert str(limit).endswith(limit.in_short)
