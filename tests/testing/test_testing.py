"""The testing kit offers rules, a clock and assertions, without Redis and without a database."""

from __future__ import annotations

import unittest
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.test import AsyncClient, Client, SimpleTestCase, override_settings
from rest_framework.test import APIClient

from django_ratelimiter import backend, limiter
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import Limit
from django_ratelimiter.exceptions import LimitExceeded
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.ruleset import rule_from
from django_ratelimiter.testing import START, FrozenClock, RulesInForce, aassert_limited, assert_limited, override_rules

from ..making import make_rule, request_of
from ..rules.build import limit_data, rule_data

pytestmark = pytest.mark.urls("tests.entry_points.urls")

TWICE = {"slug": "twice", "limits": ["2/minute"]}


class TestFrozenClock:
    def test_passes_only_when_told(self) -> None:
        clock = FrozenClock()
        assert clock.now == START
        assert clock() == 1_767_225_600_000_000
        clock.advance(1.5)
        assert clock.now == START + timedelta(seconds=1.5)

    def test_starts_when_it_is_told(self) -> None:
        noon = datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=2)))
        clock = FrozenClock(noon)
        assert clock() == 1_782_900_000_000_001
        assert clock.now == noon
        clock.move_to(START)
        assert clock.now == START

    @pytest.mark.parametrize(("seconds", "passed_us"), [(0.1, 100_000), (1e-7, 1), (60, 60_000_000), (0, 0)])
    def test_no_less_passes_than_was_asked(self, seconds: float, passed_us: int) -> None:
        clock = FrozenClock()
        before = clock()
        clock.advance(seconds)
        assert clock() - before == passed_us

    def test_rejects_what_is_no_time(self) -> None:
        with pytest.raises(ValueError, match="must not be negative"):
            FrozenClock().advance(-1)
        with pytest.raises(ValueError, match="time zone"):
            FrozenClock(datetime(2026, 1, 1))  # noqa: DTZ001


class TestRules:
    def test_in_a_block(self, client: Client) -> None:
        with override_rules(TWICE) as rules:
            assert [client.get("/plain/").status_code for _ in range(3)] == [200, 200, 429]
            rules.clock.advance(120)
            assert client.get("/plain/").status_code == 200
        assert "RateLimit" not in _unlimited(client)

    def test_is_the_same_each_time(self, client: Client) -> None:
        @override_rules(TWICE, kwarg_name="rules")
        def test(rules: RulesInForce) -> None:
            assert_limited(client, "/plain/", after=2)
            assert rules.clock.now == START
            rules.clock.advance(1)

        test()
        test()

    def test_around_a_coroutine(self) -> None:
        @override_rules(TWICE)
        async def test() -> None:
            await aassert_limited(AsyncClient(), "/native/", after=2, by="twice")

        async_to_sync(test)()
        async_to_sync(test)()

    def test_around_a_case(self) -> None:
        @override_rules(TWICE, attr_name="rules")
        class Case(SimpleTestCase):
            rules: RulesInForce

            def setUp(self) -> None:
                assert self.rules.clock.now == START

            def test_one(self) -> None:
                assert_limited(self.client, "/plain/", after=2)

            def test_other(self) -> None:
                assert_limited(self.client, "/plain/", after=2)

        outcome = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Case)(outcome)
        assert outcome.testsRun == 2
        assert not outcome.errors + outcome.failures

    def test_within_one_another_the_inner_ones_hold(self, client: Client) -> None:
        with override_rules(TWICE):
            client.get("/plain/")
            with override_rules({"slug": "once", "limits": ["1/minute"]}):
                assert_limited(client, "/plain/", after=1, by="once")
            assert_limited(client, "/plain/", after=1, by="twice")

    def test_are_put_back_when_the_block_fails(self, client: Client) -> None:
        before, build = cache._state, backend._build
        with pytest.raises(RuntimeError), override_rules(TWICE):
            raise RuntimeError
        with pytest.raises(ValueError, match="rate"), override_rules({"slug": "bad", "limits": ["2/fortnight"]}):
            pass
        assert (cache._state, backend._build) == (before, build)
        assert "RateLimit" not in _unlimited(client)

    def test_hold_whatever_the_settings_say(self, client: Client) -> None:
        for settings in ({"ENABLED": False}, {"CACHE_ALIAS": "nowhere", "HEADERS": []}, {"ENGINE": "no.such.engine"}):
            with override_settings(RATELIMITER=settings), override_rules(TWICE):
                rejected = assert_limited(client, "/plain/", after=2)
            assert ("RateLimit" in rejected) is ("HEADERS" not in settings)
        with override_settings(RATELIMITER={"CACHE_ALIAS": "nowhere"}), pytest.raises(ImproperlyConfigured):
            backend.get_engine()

    def test_settings_may_change_within(self, client: Client, settings: Any) -> None:
        with override_rules(TWICE):
            client.get("/plain/")
            settings.RATELIMITER = {"CACHE_ALIAS": "nowhere", "HEADERS": []}
            rejected = assert_limited(client, "/plain/", after=1)
        assert "RateLimit" not in rejected

    @pytest.mark.django_db(transaction=True)
    def test_saved_rules_have_no_say(self, client: Client) -> None:
        assert "RateLimit" not in client.get("/plain/")  # and now this process knows the rules that it had before
        with override_rules(TWICE):
            make_rule("saved")
            assert_limited(client, "/plain/", after=2, by="twice")
        assert client.get("/plain/")["RateLimit"].startswith('"saved"')

    @pytest.mark.django_db
    def test_nor_have_those_of_an_open_transaction(self, client: Client) -> None:
        make_rule("saved")
        assert client.get("/plain/")["RateLimit"].startswith('"saved"')
        with override_rules(TWICE):
            assert_limited(client, "/plain/", after=2, by="twice")

    def test_are_replaced_without_forgetting_what_was_spent(self, client: Client) -> None:
        with override_rules({"slug": "few", "limits": ["5/minute"]}) as rules:
            client.get("/plain/")
            rules({"slug": "few", "limits": ["3/minute"]}, {"slug": "more", "limits": ["9/minute"]})
            assert_limited(client, "/plain/", after=2, by="few")
            rules()
            assert "RateLimit" not in client.get("/plain/")

    def test_count_what_each_user_spends_without_a_database(self) -> None:
        def check(pk: int) -> Decision:
            return limiter.check(request_of(User(pk=pk)))

        with override_rules({**TWICE, "partition_by": ["user"]}):
            assert_limited(check, 1, after=2)
            assert_limited(check, 2, after=2)

    def test_know_the_tier_that_the_test_says(self, client: Client) -> None:
        limits = {"pro": ["3/minute"], "staff": "unlimited", None: ["1/minute"]}
        with override_rules({"slug": "tiers", "limits": limits}, tier="pro") as rules:
            assert_limited(client, "/plain/", after=3)
            rules.tier = "staff"
            assert "RateLimit" not in client.get("/plain/")
            rules.tier = None
            assert_limited(client, "/plain/", after=0)

    def test_know_the_api_keys_that_the_test_names(self, client: Client) -> None:
        with override_rules({**TWICE, "partition_by": ["api_key"]}, api_keys=["k-1", "k-2"]):
            for key in ("k-1", "k-2"):
                assert_limited(client, "/plain/", headers={"X-API-Key": key}, after=2)
            assert "RateLimit" not in client.get("/plain/", headers={"X-API-Key": "invented"})

    @override_settings(RATELIMITER={"API_KEY_RESOLVER": "no.such.resolver", "TIER_RESOLVER": "no.such.resolver"})
    def test_ask_no_resolvers_of_the_project(self, client: Client) -> None:
        limits = {"pro": ["2/minute"], None: ["1/minute"]}
        rule = {"slug": "keys", "limits": limits, "partition_by": ["api_key"]}
        with override_rules(rule, tier="pro", api_keys=["k-1"]):
            assert_limited(client, "/plain/", headers={"X-API-Key": "k-1"}, after=2)

    def test_hold_requests_without_sleeping(self, client: Client) -> None:
        queue = {"rate": "1/minute", "algorithm": "leaky_bucket", "burst": 3, "max_delay_ms": 600_000}
        with override_rules({"slug": "queue", "limits": [queue]}) as rules:
            assert [client.get("/plain/").status_code for _ in range(3)] == [200, 200, 200]
            assert rules.clock.slept == [60.0, 60.0]
            assert rules.clock.now == START + timedelta(minutes=2)

    def test_hold_coroutines_and_slots_without_sleeping(self, async_client: AsyncClient) -> None:
        limits = [{"rate": "1/minute", "algorithm": "leaky_bucket", "burst": 3}]
        with override_rules({"slug": "queue", "limits": limits, "path": "/native/"}) as rules:
            assert [async_to_sync(async_client.get)("/native/").status_code for _ in range(2)] == [200, 200]
            rules({"slug": "calls", "limits": ["1/minute"], "scope": "calls"})
            rules.clock.slept.clear()
            for _ in range(2):
                with limiter.slot("calls"):
                    pass
            with pytest.raises(LimitExceeded), limiter.slot("calls", max_wait=1):
                pass
            assert sum(rules.clock.slept) > 59

    def test_slots_wait_by_the_same_clock(self) -> None:
        limits = [{"quota": 1, "window_seconds": 60, "algorithm": "concurrency"}]
        with override_rules({"slug": "calls", "limits": limits, "scope": "calls"}) as rules, limiter.slot("calls"):
            with pytest.raises(LimitExceeded), limiter.slot("calls", max_wait=5):
                pass
            assert sum(rules.clock.slept) == 5

    @pytest.mark.parametrize("view", ["/throttled/", "/throttled/scoped/"])
    def test_are_met_by_the_rest_framework(self, view: str) -> None:
        rules = [{**TWICE, "path": "/throttled/"}, {"slug": "uploads", "scope": "uploads", "limits": ["1/day"]}]
        with override_rules(*rules):
            assert_limited(APIClient(), view, **({"after": 2} if view == "/throttled/" else {"after": 1}))


def _unlimited(client: Client) -> Any:
    with override_settings(RATELIMITER={"ENABLED": False}):
        return client.get("/plain/")


class TestRulesWrittenBriefly:
    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            ("10/minute", Limit(10, 60)),
            ("10 per 0.5 seconds", Limit(10, 0.5)),
            (Limit(10, 60, "token_bucket", burst=20), Limit(10, 60, "token_bucket", burst=20)),
            (Limit(10, calendar="month", algorithm="fixed_window"), Limit(10, None, "fixed_window", calendar="month")),
            ({"rate": "10/hour", "algorithm": "gcra", "burst": 20}, Limit(10, 3600, "gcra", burst=20)),
            ({"quota": 10, "window_seconds": 1.5, "soft_quota": 5}, Limit(10, 1.5, soft_quota=5)),
            (
                {"quota": 9, "calendar": "day", "algorithm": "fixed_window"},
                Limit(9, None, "fixed_window", calendar="day"),
            ),
        ],
    )
    def test_a_limit(self, written: Any, expected: Limit) -> None:
        with override_rules({"slug": "api", "limits": [written]}) as rules:
            [rule] = rules.rule_set().rules
            assert [record.limit for record in rule.limits_for(None)] == [expected]

    def test_fields_are_those_of_a_rule(self) -> None:
        fields = {"methods": ["GET"], "partition_by": ["ip"], "priority": 5, "mode": "shadow", "message": "No."}
        with override_rules({"slug": "api", "limits": ["1/day"], **fields}) as rules:
            [rule] = rules.rule_set().rules
        assert (rule.slug, rule.mode, rule.priority, rule.message) == ("api", "shadow", 5, "No.")
        assert rule.methods == {"GET", "HEAD"}
        assert rule.partition_by == ("ip",)

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [({}, "any"), ({"path": "/api/"}, "prefix"), ({"path": "/api/", "path_kind": "exact"}, "exact")],
    )
    def test_a_path_is_a_prefix(self, fields: dict[str, str], kind: str) -> None:
        with override_rules({**TWICE, **fields}) as rules:
            assert rules.rule_set().rules[0].path_kind == kind

    def test_a_record_is_taken_as_it_is(self, client: Client) -> None:
        record = rule_from(rule_data("record", limits=[limit_data(quota=1)]))
        with override_rules(record):
            assert_limited(client, "/plain/", after=1, by="record")

    @pytest.mark.parametrize(
        ("rule", "says"),
        [
            ({"slug": "api"}, "needs limits"),
            ({"limits": []}, "needs slug"),
            ({**TWICE, "pathh": "/"}, "no pathh"),
            ({**TWICE, "mode": "strict"}, "mode"),
            ({"slug": "api", "limits": "2/minute"}, "list"),
            ({"slug": "api", "limits": ["2/fortnight"]}, "rate"),
            ({"slug": "api", "limits": [{"quotum": 2}]}, "no quotum"),
            ({"slug": "api", "limits": [{"quota": 2}]}, "window"),
            ({"slug": "api", "limits": [{"rate": "2/day", "burst": 1}]}, "burst"),
        ],
    )
    def test_what_cannot_be_enforced_is_rejected(self, rule: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says), override_rules(rule):
            pass


class TestAssertions:
    def test_the_rejection_is_returned(self, client: Client, ratelimit_rules: RulesInForce) -> None:
        ratelimit_rules(TWICE)
        assert assert_limited(client, "/plain/", after=2)["Retry-After"] == "90"

    def test_any_method_and_any_callable(self, client: Client, ratelimit_rules: RulesInForce) -> None:
        ratelimit_rules({**TWICE, "methods": ["POST"]}, {"slug": "calls", "scope": "calls", "limits": ["1/day"]})
        assert_limited(client.post, "/plain/", {"field": "value"}, after=2, by="twice")

        def call() -> Decision:
            with limiter.slot("calls", max_wait=0) as decision:
                return decision

        assert not assert_limited(call, after=1, by="calls").allowed

    def test_coroutines(self, ratelimit_rules: RulesInForce) -> None:
        ratelimit_rules({**TWICE, "scope": "calls"})

        async def call() -> Decision:
            async with limiter.slot("calls", max_wait=0) as decision:
                return decision

        assert async_to_sync(aassert_limited)(call, after=2, by="twice").retry_after == 90
        with pytest.raises(TypeError, match="aassert_limited"):
            assert_limited(call, after=2)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"after": 3}, "Request 3 of 3 was rejected, by twice"),
            ({"after": 1}, "Request 2 was allowed; it should be rejected after 1"),
            ({"after": 2, "by": "other"}, "rejected by twice, not by other"),
        ],
    )
    def test_fail_and_say_why(self, client: Client, ratelimit_rules: RulesInForce, options: Any, says: str) -> None:
        ratelimit_rules(TWICE)
        with pytest.raises(AssertionError, match=says):
            assert_limited(client, "/plain/", **options)


class TestFixtures:
    def test_no_rule_is_in_force_at_first(self, client: Client, ratelimit_rules: RulesInForce) -> None:
        assert "RateLimit" not in client.get("/plain/")

    def test_limits_count_by_the_clock(
        self, client: Client, ratelimit_rules: RulesInForce, ratelimit_clock: FrozenClock
    ) -> None:
        ratelimit_rules({"slug": "api", "limits": [Limit(1, 60, "token_bucket")]})
        assert_limited(client, "/plain/", after=1)
        ratelimit_clock.advance(59.999999)
        assert client.get("/plain/").status_code == 429
        ratelimit_clock.advance(0.000001)
        assert client.get("/plain/").status_code == 200
        assert ratelimit_clock() == ratelimit_rules.clock()
