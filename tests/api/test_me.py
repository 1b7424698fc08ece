"""A caller's own tier, limits and last days. Asking spends nothing."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client, override_settings
from django.utils import timezone, translation
from rest_framework.test import APIClient

from django_ratelimiter import backend, limiter
from django_ratelimiter.api import throttling
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.models import AccessEntry, CallerUsage, Rule, Tier, TierAssignment, TopPartition
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.usage.times import stored

from ..limiter.test_limiter import Broken
from ..making import client_of, request_of
from .conftest import KEY, MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.api.urls")]


def me(client: Client, **headers: str) -> Any:
    response = client.get("/limits/me/", headers=headers)
    assert response.status_code == 200, response.content
    return response.json()


def told(client: Client, *names: str, **headers: str) -> list[tuple[Any, ...]]:
    """These fields of each limit."""
    return [tuple(limit[name] for name in ("rule", *names)) for limit in me(client, **headers)["limits"]]


def today() -> date:
    return timezone.now().astimezone(timezone.get_default_timezone()).date()


class TestWho:
    @override_settings(REST_FRAMEWORK={})
    def test_nobody_else_than_users_and_known_keys(self, client: Client, as_ann: Client, pro: Tier) -> None:
        assert client.get("/limits/me/").status_code == 403
        assert client.get("/limits/me/", headers={"X-API-Key": "unknown"}).status_code == 403
        assert me(as_ann)["tier"] is None
        assert me(client, **{"X-API-Key": KEY})["tier"] == {"slug": "pro", "name": "Professional"}

    def test_401_where_the_framework_says_so(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        from rest_framework.authentication import BasicAuthentication

        from django_ratelimiter.api.views import MeView

        monkeypatch.setattr(MeView, "authentication_classes", (BasicAuthentication,))
        assert client.get("/limits/me/").status_code == 401
        response = client.get("/limits/me/", headers={"Authorization": "Basic eDp5"})
        assert (response.status_code, response["WWW-Authenticate"]) == (401, 'Basic realm="api"')

    def test_a_user_whom_the_framework_has_authenticated(self, ann: User, make_rule: MakeRule) -> None:
        make_rule("per-user", partition_by=["user"])
        client = APIClient()
        client.force_authenticate(ann)
        assert told(client, "remaining") == [("per-user", 5)]

    def test_not_who_is_denied(self, as_ann: Client, ann: User) -> None:
        AccessEntry.objects.create(action="deny", kind="user", value=str(ann.pk))
        assert as_ann.get("/limits/me/").status_code == 403


class TestLimits:
    def test_as_the_tier_has_them(self, make_rule: MakeRule, as_ann: Client, ann: User, free: Tier, pro: Tier) -> None:
        limits = {free: [{"quota": 5}, {"quota": 9, "window_seconds": 60}], pro: [{"quota": 50}]}
        make_rule("api", limits, partition_by=["user"])
        make_rule("pros", {pro: [{"quota": 50}]})
        assert sorted(told(as_ann, "quota", "in_words")) == [
            ("api", 5, "5 per day, token bucket"),
            ("api", 9, "9 per minute, token bucket"),
        ]
        TierAssignment.objects.create(tier=free, user=ann, multiplier=3)
        tiers.forget()
        assert sorted(told(as_ann, "quota")) == [("api", 15), ("api", 27)]

    def test_what_remains_and_when_it_is_back(self, make_rule: MakeRule, as_ann: Client) -> None:
        make_rule("hello", partition_by=["user"], path_kind="prefix", path="/hello/", cost=2)
        assert told(as_ann, "remaining", "resets_in", "retry_in", "cost") == [("hello", 5, 0, 0, 2)]
        for _ in range(3):
            as_ann.get("/hello/")
        [limit] = me(as_ann)["limits"]
        assert limit["remaining"] == 1
        assert 0 < limit["retry_in"] < 17_280
        assert 17_280 * 3 < limit["resets_in"] < 17_280 * 4
        back = datetime.fromisoformat(limit["resets_at"])
        assert abs(back - timezone.now() - timedelta(seconds=limit["resets_in"])) < timedelta(seconds=9)

    def test_units_that_code_charges_are_not_left(self, make_rule: MakeRule, as_ann: Client, ann: User) -> None:
        make_rule("sums", partition_by=["user"], scope="sums")
        limiter.check(request_of(ann), scope="sums", cost=3)
        assert told(as_ann, "cost", "remaining", "retry_in") == [("sums", 1, 2, 0)]

    def test_the_numbers_are_those_of_the_fields(self, make_rule: MakeRule, as_ann: Client, free: Tier) -> None:
        bucket, concurrent = {"quota": 5, "window_seconds": 1, "burst": 50}, {"quota": 2, "algorithm": "concurrency"}
        make_rule("hello", {free: [{"quota": 1000}, bucket, concurrent]}, path_kind="prefix", path="/hello/")
        numbers = told(as_ann, "policy", "quota", "window_seconds", "left")
        assert numbers == [
            ("hello", "hello", 1000, 86_400, 1000),
            ("hello", "hello-1", 50, 10, 50),
            ("hello", "hello-86400", 2, None, 2),
        ]
        policies = as_ann.get("/hello/")["RateLimit-Policy"]
        concurrency = '"hello-86400";q=2;qu="concurrent-requests"'
        assert policies == f'"hello";q=1000;w=86400,"hello-1";q=50;w=10,{concurrency}'

    def test_asking_spends_nothing(self, make_rule: MakeRule, as_ann: Client, pro: Tier) -> None:
        for names in ("user", "ip", "api_key"):
            make_rule(f"per-{names}", {None: [{"quota": 2}]}, partition_by=[names])
        make_rule("global", {None: [{"quota": 2}]})
        make_rule("busy", {None: [{"quota": 2, "algorithm": "concurrency"}]})
        headers = {"X-API-Key": KEY}
        for _ in range(5):
            assert set(told(as_ann, "remaining", **headers)) == {
                (slug, 2) for slug in ("per-user", "per-ip", "per-api_key", "global", "busy")
            }
        assert "per-ip" not in as_ann.get("/limits/me/").get("RateLimit", "")

    def test_bad_credentials_are_charged(self, make_rule: MakeRule, client: Client) -> None:
        make_rule("per-ip", {None: [{"quota": 2}]}, partition_by=["ip"])
        statuses = [client.get("/limits/me/", headers={"X-API-Key": f"guess {n}"}).status_code for n in range(4)]
        assert statuses == [403, 403, 429, 429]

    def test_what_depends_on_the_request_is_not_known(self, make_rule: MakeRule, as_ann: Client) -> None:
        make_rule("item", partition_by=["path:item"], missing_partition="deny", path_kind="prefix", path="/items/")
        assert told(as_ann, "quota", "remaining", "resets_at", "counted_by") == [("item", 5, None, None, ["path:item"])]

    def test_what_the_caller_lacks_does_not_limit_it(self, make_rule: MakeRule, client: Client, pro: Tier) -> None:
        make_rule("per-user", partition_by=["user"])
        make_rule("per-key", partition_by=["api_key"])
        assert told(client, **{"X-API-Key": KEY}) == [("per-key",)]

    @pytest.mark.parametrize("because", ["allowed", "disabled", "stopped"])
    def test_nothing_limits_who_is_let_past(
        self, make_rule: MakeRule, as_ann: Client, ann: User, because: str, settings: Any
    ) -> None:
        make_rule("api")
        make_rule("item", partition_by=["path:item"])
        if because == "allowed":
            AccessEntry.objects.create(action="allow", kind="user", value=str(ann.pk))
        elif because == "disabled":
            settings.RATELIMITER = {**settings.RATELIMITER, "ENABLED": False}
        else:
            cache.switch_enforcement(False)
        assert told(as_ann) == []


ACME = {"X-Tenant": "acme", "Host": "acme"}


class TestWhatAClientChooses:
    """Values that a client can send are no proof that it is the caller whose counters they select."""

    @pytest.fixture(params=["header:X-Tenant", "tenant", "host"])
    def identity(self, request: pytest.FixtureRequest, settings: Any) -> str:
        own = {"tenant": f"{__name__}.tenant_of"}
        settings.RATELIMITER = {**settings.RATELIMITER, "IDENTITIES": own}
        settings.ALLOWED_HOSTS = ["acme"]
        return str(request.param)

    @pytest.fixture
    def acmes(self, identity: str, make_rule: MakeRule, pro: Tier) -> Rule:
        """A rule that counts by tenant. Acme has used it, and has a tier of its own."""
        rule = make_rule("tenants", {pro: [{"quota": 50}], None: [{"quota": 5}]}, partition_by=[identity])
        TierAssignment.objects.create(tier=pro, partition=f"{identity}:acme", multiplier=3)
        TopPartition.objects.create(
            rule_slug="tenants", granularity="day", partition=digest(f"{identity}:acme"), allowed=7, rejected=0,
            start=stored(datetime.combine(today(), time.min, timezone.get_default_timezone())),
        )  # fmt: skip
        tiers.forget()
        return rule

    def test_shows_nothing_of_another_caller(self, acmes: Rule, make_rule: MakeRule, as_ann: Client) -> None:
        make_rule("both", partition_by=["user", *acmes.partition_by])
        Client().get("/hello/", headers=ACME)
        answer = me(as_ann, **ACME)
        assert answer["tier"] is None
        assert {(limit["rule"], limit["quota"], limit["remaining"]) for limit in answer["limits"]} == {
            ("tenants", 5, None),
            ("both", 5, None),
        }
        assert answer["usage"]["days"] == []

    def test_unless_a_gateway_sets_it(self, acmes: Rule, identity: str, as_ann: Client, settings: Any) -> None:
        settings.RATELIMITER = {**settings.RATELIMITER, "TRUSTED_IDENTITIES": [identity]}
        Client().get("/hello/", headers=ACME)
        answer = me(as_ann, **ACME)
        assert answer["tier"]["slug"] == "pro"
        assert [(limit["quota"], limit["remaining"]) for limit in answer["limits"]] == [(150, 149)]
        assert [day["requests"] for day in answer["usage"]["days"]] == [7]


def tenant_of(request: Any) -> Any:
    return request.headers.get("X-Tenant")


class TestItsOwnLimit:
    def test_a_rate_for_each_caller(
        self, make_rule: MakeRule, as_ann: Client, client: Client, pro: Tier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(throttling.MeThrottle, "rate", (2, 3_600))
        assert [as_ann.get("/limits/me/").status_code for _ in range(3)] == [200, 200, 429]
        assert client.get("/limits/me/", headers={"X-API-Key": KEY}).status_code == 200

    def test_rules_of_its_scope(self, make_rule: MakeRule, as_ann: Client) -> None:
        make_rule("asking", {None: [{"quota": 2}]}, scope="ratelimit-me", partition_by=["user"])
        assert [as_ann.get("/limits/me/").status_code for _ in range(3)] == [200, 200, 429]


class TestLastDays:
    def top(self, rule: Rule, value: str, days: int, allowed: int, rejected: int, granularity: str = "day") -> None:
        start = datetime.combine(today() - timedelta(days=days), time.min, timezone.get_default_timezone())
        TopPartition.objects.create(
            rule_slug=rule.slug, granularity=granularity, start=stored(start), partition=digest(value), allowed=allowed,
            rejected=rejected,
        )  # fmt: skip

    def test_as_far_as_they_are_known(self, make_rule: MakeRule, as_ann: Client, ann: User) -> None:
        rule, shared = make_rule("per-user", partition_by=["user"]), make_rule("global")
        mine = f"user:{ann.pk}"
        self.top(rule, mine, 2, 30, 4)
        self.top(rule, mine, 40, 1, 1)
        self.top(rule, mine, 1, 7, 7, "hour")
        self.top(rule, f"user:{ann.pk + 1}", 2, 99, 99)
        self.top(shared, "", 2, 99, 99)
        by_address = make_rule("per-ip", partition_by=["ip"])
        self.top(by_address, mine, 2, 99, 99)
        usage = me(as_ann)["usage"]
        assert (usage["since"], usage["until"]) == (str(today() - timedelta(days=29)), str(today()))
        assert usage["complete"] is False
        shown = [
            (day["date"], day["rule"], day["requests"], day["allowed"], day["rejected"], day["known_from"])
            for day in usage["days"]
        ]
        assert shown == [
            (str(today() - timedelta(days=2)), "per-user", 34, 30, 4, "top"),
        ]

    def test_every_request_where_the_rule_counts_exactly(
        self, make_rule: MakeRule, as_ann: Client, ann: User, settings: Any
    ) -> None:
        """Also where REVEAL hides who it is; of days before, what else is known."""
        settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
        rule = make_rule("per-user", partition_by=["user"], exact_usage=True)
        for days in (1, 2):
            self.top(rule, f"user:{ann.pk}", days, 59, 0)
        self.exact("per-user", str(ann.pk), 1, 0, allowed=50, rejected=40, units=50)
        self.exact("per-user", str(ann.pk), 1, 23, allowed=3, rejected=4, rejected_by_other=6, units=8)
        self.exact("per-user", str(ann.pk), 0, 0, allowed=7, units=7)
        self.exact("per-user", str(ann.pk + 1), 1, 5, allowed=9, units=9)
        make_rule("per-ip", partition_by=["ip"], exact_usage=True)
        self.exact("per-user", "127.0.0.1", 5, 5, "ip", allowed=9, units=9)  # before she logged in
        self.exact("other", str(ann.pk), 1, 5, allowed=9, units=9)
        self.exact("per-user", str(ann.pk), 30, 5, allowed=9, units=9)
        older, day, latest = me(as_ann)["usage"]["days"]
        assert (older["known_from"], older["rejected_by_other"], older["units"]) == ("top", None, None)
        assert day == {
            "date": str(today() - timedelta(days=1)), "rule": "per-user", "requests": 103, "allowed": 53,
            "rejected": 44, "rejected_by_other": 6, "units": 58, "known_from": "exact", "estimated": False,
        }  # fmt: skip
        assert (latest["requests"], latest["rejected_by_other"], latest["units"]) == (7, 0, None)

    def exact(self, rule: str, value: str, days: int, hour: int, identity: str = "user", **counts: int) -> None:
        start = datetime.combine(today() - timedelta(days=days), time(hour), timezone.get_default_timezone())
        CallerUsage.objects.create(rule_slug=rule, identity=identity, value=value, hour=start, **counts)

    def test_of_an_api_key(self, make_rule: MakeRule, client: Client, pro: Tier) -> None:
        rule = make_rule("per-key", partition_by=["api_key"])
        self.top(rule, f"api_key:{hash_api_key(KEY)}", 0, 3, 0)
        assert [day["requests"] for day in me(client, **{"X-API-Key": KEY})["usage"]["days"]] == [3]


def test_it_is_nobody_elses_to_keep(as_ann: Client) -> None:
    assert as_ann.get("/limits/me/")["Cache-Control"] == "private, no-store"


def test_nothing_is_said_of_shadow(make_rule: MakeRule, as_ann: Client) -> None:
    make_rule("on-trial", mode="shadow", partition_by=["user"])
    make_rule("is-off", mode="off", partition_by=["user"])
    for _ in range(9):
        as_ann.get("/hello/")
    response = as_ann.get("/limits/me/")
    assert response.json()["limits"] == []
    for slug in ("on-trial", "is-off"):
        assert slug not in str(response.headers) + response.content.decode()


def test_the_unlimited_have_no_limit(make_rule: MakeRule, client: Client, pro: Tier) -> None:
    unlimited = {"unlimited": True, "quota": None, "window_seconds": None}
    make_rule("api", {None: [{"quota": 5}], pro: [unlimited]}, partition_by=["api_key"])
    assert told(client, **{"X-API-Key": KEY}) == []


def test_a_rule_that_rejects_whoever_lacks_something(make_rule: MakeRule, client: Client, pro: Tier) -> None:
    make_rule("users-only", partition_by=["user"], missing_partition="deny", path_kind="prefix", path="/hello/")
    headers = {"X-API-Key": KEY}
    assert client.get("/hello/", headers=headers).status_code == 429
    [limit] = me(client, **headers)["limits"]
    assert (limit["rule"], limit["remaining"], limit["retry_in"]) == ("users-only", 0, None)


def test_a_user_with_an_api_key_is_one_caller(make_rule: MakeRule, as_ann: Client, ann: User, pro: Tier) -> None:
    make_rule("per-key", partition_by=["api_key"])
    make_rule("per-user", partition_by=["user"])
    as_ann.get("/hello/", headers={"X-API-Key": KEY})
    assert sorted(told(as_ann, "remaining", **{"X-API-Key": KEY})) == [("per-key", 4), ("per-user", 4)]
    assert told(as_ann, "remaining") == [("per-user", 4)]


def test_on_an_event_loop(make_rule: MakeRule, ann: User) -> None:
    make_rule("per-user", partition_by=["user"])
    client = AsyncClient()
    client.force_login(ann)

    async def ask() -> Any:
        responses = [await client.get("/limits/me/") for _ in range(3)]
        return [[limit["remaining"] for limit in response.json()["limits"]] for response in responses]

    assert async_to_sync(ask)() == [[5], [5], [5]]


def test_none_of_another_caller(make_rule: MakeRule, as_ann: Client) -> None:
    make_rule("per-user", partition_by=["user"])
    bob = client_of(User.objects.create(username="bob"))
    for _ in range(9):
        bob.get("/hello/")
    assert told(as_ann, "remaining") == [("per-user", 5)]
    for query in ("user=bob", "user=2", "partition=user:2", "tier=pro", "rule=per-user&format=json"):
        assert [limit["remaining"] for limit in as_ann.get(f"/limits/me/?{query}").json()["limits"]] == [5]


def test_where_redis_goes_away_in_between(make_rule: MakeRule, as_ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the middleware has charged cannot be given back, and what remains is not known; no more than that."""
    make_rule("per-ip", partition_by=["ip"])
    assert told(as_ann, "remaining") == [("per-ip", 5)]

    for name in ("refund", "peek"):
        monkeypatch.setattr(type(backend.get_engine()), name, Broken.check)
    assert told(as_ann, "remaining") == [("per-ip", None)]


def test_in_the_callers_language(make_rule: MakeRule, as_ann: Client, settings: Any) -> None:
    make_rule("api")
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    with translation.override("en-us"):  # what the middleware activates stays active
        own = me(as_ann, **{"Accept-Language": "de"})
    assert own["limits"][0]["in_words"] == "5 pro Tag, Token-Bucket"
    assert own["usage"]["explanation"].startswith("Regeln mit genauer Nutzung zählen jede Anfrage")


FORMATS = {
    "DATE_FORMAT": "%d.%m.",
    "DATETIME_FORMAT": "%d.%m.",
    "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.NamespaceVersioning",
}


@override_settings(REST_FRAMEWORK=FORMATS)
def test_formats_and_versions_of_the_project_do_not_matter(make_rule: MakeRule, as_ann: Client) -> None:
    make_rule("api")
    answer = me(as_ann)
    assert answer["usage"]["until"] == str(today())
    assert datetime.fromisoformat(answer["limits"][0]["resets_at"]).utcoffset() == timedelta(0)
