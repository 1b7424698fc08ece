"""Tiers and multipliers of callers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test import RequestFactory
from django.test.utils import override_settings
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from django_ratelimiter.limiter.charges import build_charges, limit_request
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache, tiers, ttl_cache
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.rules.tiers import Entitlement, entitlement_for
from django_ratelimiter.values.access import NOBODY

from .build import snapshot

pytestmark = pytest.mark.django_db

HASH = "ab" * 32
RANKS = {"free": 1, "pro": 2, "partner": 3}
DEFAULTS = {"free": "authenticated", "pro": "none", "partner": "none"}

Assign = Callable[..., TierAssignment]


@pytest.fixture
def rules() -> RuleSet:
    told = [{"slug": slug, "name": slug, "rank": rank, "default_for": DEFAULTS[slug]} for slug, rank in RANKS.items()]
    for tier in told:
        Tier.objects.create(**tier)
    return RuleSet.from_snapshot(snapshot(tiers=tuple(told)))


@pytest.fixture
def assign(rules: RuleSet) -> Assign:
    """`assign("pro", hours=(from, until), user=…)`: hours from now, `None` = without that date."""

    def make(tier: str, hours: tuple[float | None, float | None] = (None, None), **values: Any) -> TierAssignment:
        dates = [None if hour is None else timezone.now() + timedelta(hours=hour) for hour in hours]
        given = {"starts_at": dates[0], "ends_at": dates[1], "api_key_hash": HASH} | values
        if len(values.keys() & {"user", "group", "partition"}):
            given["api_key_hash"] = ""
        return TierAssignment.objects.create(tier=Tier.objects.get(slug=tier), **given)

    return make


def entitlement(rules: RuleSet, **partitions: str) -> tuple[str | None, Decimal]:
    """Of the key, or of a caller without one who has these partitions."""

    def partition_of(names: tuple[str, ...]) -> str | None:
        return f"{names[0]}:{partitions[names[0]]}" if names[0] in partitions else None

    found = entitlement_for(rules, None, None if partitions else HASH, partition_of)
    return found.tier and found.tier.slug, found.multiplier


class TestWhichAssignment:
    def test_one_of_a_tier_that_the_rules_do_not_know_is_none(self, rules: RuleSet, assign: Assign) -> None:
        Tier.objects.create(slug="new", name="New", rank=9)
        assign("new")
        assert entitlement(rules) == ("free", 1)

    def test_of_user_group_and_key_together(self, rules: RuleSet, assign: Assign) -> None:
        user, group = User.objects.create(username="ada"), Group.objects.create(name="staff")
        user.groups.add(group)
        assign("free", user=user)
        assign("pro", group=group)
        assert entitlement_for(rules, str(user.pk), None) == Entitlement(rules.tiers["pro"])
        assign("partner")
        assert entitlement_for(rules, str(user.pk), HASH) == Entitlement(rules.tiers["partner"])
        assert tiers.entitlement_for(rules, str(user.pk), HASH).tier == rules.tiers["partner"]

    def test_an_ended_assignment_leaves_the_key_known(self, rules: RuleSet, assign: Assign) -> None:
        assign("pro", (None, -1))
        assert tiers.is_known_api_key(HASH)


class TestPartitions:
    @pytest.mark.parametrize(
        ("assigned", "address", "meets"),
        [
            ("ip:192.0.2.7", "192.0.2.7", True),
            ("ip:192.0.2.7", "192.0.2.8", False),
            ("ip:192.0.2.0/24", "192.0.2.8", True),
            ("ip:192.0.2.0/24", "192.0.0.0/16", False),
            ("ip:2001:db8::/48", "2001:db8:0:7::/64", True),
            ("ip:::/0", "192.0.2.7", False),
            ("ip:0.0.0.0/0", "192.0.2.7", True),
        ],
    )
    def test_an_address_is_met_by_its_networks(
        self, rules: RuleSet, assign: Assign, assigned: str, address: str, meets: bool
    ) -> None:
        assign("pro", partition=assigned, multiplier=2)
        assert entitlement(rules, ip=address) == (("pro", 2) if meets else (None, 1))

    def test_who_lacks_it_is_not_met(self, rules: RuleSet, assign: Assign) -> None:
        assign("pro", partition="user:7")
        assert entitlement(rules, ip="192.0.2.7") == (None, 1)
        assert entitlement(rules, user="7") == ("pro", 1)

    def test_who_has_no_address_is_in_no_network(self, rules: RuleSet, assign: Assign) -> None:
        assign("pro", partition="ip:192.0.2.0/24")
        assert entitlement(rules, user="7") == (None, 1)

    def test_a_row_of_sql_that_nothing_can_be_counted_by_is_skipped(self, rules: RuleSet, assign: Assign) -> None:
        assign("pro", partition="ip:192.0.2.7")
        assign("partner", partition="no such thing")
        assign("partner", partition="ip:nonsense/7")
        assert entitlement(rules, ip="192.0.2.7") == ("pro", 1)

    def test_as_many_as_a_process_can_hold(
        self, rules: RuleSet, assign: Assign, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(tiers, "MAX_ASSIGNMENTS", 2)
        for last in range(3):
            assign("pro", partition=f"ip:192.0.2.{last}")
        assert [entitlement(rules, ip=f"192.0.2.{last}")[0] for last in range(3)] == [None, "pro", "pro"]
        assert "More than 2 partitions" in caplog.text


class TestRemembering:
    def test_a_change_is_obeyed_when_the_time_is_over(self, rules: RuleSet, assign: Assign, now: list[float]) -> None:
        assert (entitlement(rules), entitlement(rules, ip="192.0.2.7")) == (("free", 1), (None, 1))
        assign("pro")
        assign("pro", partition="ip:192.0.2.7")
        now[0] += 4.9
        assert (entitlement(rules), entitlement(rules, ip="192.0.2.7")) == (("free", 1), (None, 1))
        now[0] += 0.1
        assert (entitlement(rules), entitlement(rules, ip="192.0.2.7")) == (("pro", 1), ("pro", 1))

    def test_without_caching_a_change_is_obeyed_at_once(self, rules: RuleSet, assign: Assign) -> None:
        with override_settings(RATELIMITER={"TIER_CACHE_SECONDS": 0}):
            assert entitlement(rules) == ("free", 1)
            assign("pro")
            assert entitlement(rules) == ("pro", 1)

    def test_no_query_when_warm(self, rules: RuleSet, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        keys, pro = [f"{number:064x}" for number in range(10)], Tier.objects.get(slug="pro")
        TierAssignment.objects.bulk_create(TierAssignment(tier=pro, api_key_hash=key) for key in keys)
        for queries in (len(keys) + 1, 0):
            with django_assert_num_queries(queries):
                found = {entitlement_for(rules, None, key, lambda names: None).tier for key in keys}
            assert found == {rules.tiers["pro"]}

    def test_one_more_key_than_a_cache_holds_empties_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ttl_cache, "CACHE_SIZE", 2)
        asked: list[str] = []

        def find(key: str) -> str:
            asked.append(key)
            return key.upper()

        known = ttl_cache.KeyCache(find, "A key")
        assert [known.get(key) for key in ("a", "b", "a", "c", "c", "a")] == ["A", "B", "A", "C", "C", "A"]
        assert asked == ["a", "b", "c", "a"]

    def test_a_full_cache_drops_nothing_when_what_it_knows_is_read_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ttl_cache, "CACHE_SIZE", 2)
        monkeypatch.setattr(ttl_cache, "settings", SimpleNamespace(TIER_CACHE_SECONDS=0.0))
        rows = {"a": "1", "b": "2"}

        def find(key: str) -> str:
            if key not in rows:
                raise DatabaseError
            return rows[key]

        callers = ttl_cache.KeyCache(find, "A key")
        assert [callers.get(key) for key in ("a", "b", "a")] == ["1", "2", "1"]
        rows.clear()
        assert [callers.get(key) for key in ("b", "a", "c")] == ["2", "1", None]

    @pytest.mark.parametrize("column", ["multiplier", "ends_at"])
    def test_a_row_that_cannot_be_read_costs_its_own_caller(
        self,
        rules: RuleSet,
        assign: Assign,
        column: str,
        caplog: pytest.LogCaptureFixture,
        now: list[float],
    ) -> None:
        if connection.vendor != "sqlite":
            pytest.skip("other databases reject such a row")
        row = assign("pro", (None, 1))
        assign("partner", api_key_hash="cd" * 32)
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE django_ratelimiter_tierassignment SET {column} = '9999-99-99 10:00' WHERE id = %s", [row.pk]
            )
        assert entitlement(rules) == ("free", 1)
        assert "cannot be read" in caplog.text
        assert entitlement_for(rules, None, "cd" * 32).tier == rules.tiers["partner"]
        now[0] += 9
        assert entitlement_for(rules, None, "cd" * 32).tier == rules.tiers["partner"]


class TestErrors:
    """What an error returns is no answer, whichever cache asks."""

    def test_in_a_broken_transaction_are_kept_for_nobody(self, rules: RuleSet, assign: Assign) -> None:
        user = User.objects.create(username="ann")
        assign("pro", user=user)
        assign("pro")
        assign("pro", partition="ip:192.0.2.7")
        AccessEntry.objects.create(kind="user", value=str(user.pk), action="deny")

        def answers() -> list[object]:
            return [
                entitlement_for(rules, str(user.pk), None).tier == rules.tiers["pro"],
                entitlement(rules, ip="192.0.2.7") == ("pro", 1),
                tiers.is_known_api_key(HASH),
                tiers.resolve_api_key(HASH) == "pro",
                bool(storage.access_list()),
            ]

        with override_settings(RATELIMITER={"API_KEY_RESOLVER": f"{__name__}.owner_of"}):
            with transaction.atomic():
                transaction.set_rollback(True)
                assert answers() == [False] * 5
            assert answers() == [True] * 5

    @pytest.mark.parametrize("error", [OperationalError, ttl_cache.NoAnswer])
    def test_of_a_database_out_of_reach_pause_all_keys_for_a_second(
        self, error: type[Exception], now: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def find(key: str) -> str:
            asked.append(key)
            raise error

        monkeypatch.setattr(ttl_cache, "_databases", lambda: {"another than that of the open transaction"})
        callers = ttl_cache.CallerCache(find, "none", "Rows")
        assert [callers.get(key) for key in "aab"] == ["none"] * 3
        assert asked == ["a"]
        now[0] += ttl_cache.RETRY_SECONDS
        monkeypatch.setattr(callers, "_find", lambda key: "known")
        assert [callers.get(key) for key in "aab"] == ["known"] * 3


def owner_of(key: str) -> str:
    return TierAssignment.objects.get(api_key_hash=key).tier.slug


def test_the_limits_that_are_met_are_multiplied(rules: RuleSet, assign: Assign) -> None:
    rule = Rule.objects.create(slug="api", name="API", partition_by=["ip"], mode="enforce")
    RuleLimit.objects.create(rule=rule, quota=10, window_seconds=60, soft_quota=5)
    assign("pro", (None, 1), partition="ip:192.0.2.0/24", multiplier=2)
    found = []
    for address in ("192.0.2.7", "203.0.113.7"):
        request = limit_request(RequestFactory(REMOTE_ADDR=address).get("/"))
        call: Any = build_charges(cache.current_rules(), NOBODY, request)
        [owner], [charge] = call.template.owners, call
        found.append((owner.tier and owner.tier.slug, charge.limit.quota, charge.limit.soft_quota))
    assert found == [("pro", 20, 10), (None, 10, 5)]
