"""Access entries at the entry points: who skips all rules, and who is denied."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from django_ratelimiter import identity, limiter
from django_ratelimiter.engine.redis.connections.async_transport import AsyncTransport
from django_ratelimiter.engine.redis.connections.transport import Transport
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.models import AccessEntry, Tier
from django_ratelimiter.rules import ttl_cache
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.throttling import RuleThrottle, UserRateThrottle
from django_ratelimiter.values.digests import whole

from ..limiter.test_limiter import Broken
from ..making import Clock, MakeRule
from .drf_views import rated, statuses, view_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

ADDRESS = "192.0.2.7"


def enter(action: str = "deny", kind: str = "ip", value: str = ADDRESS, **fields: Any) -> AccessEntry:
    return AccessEntry.objects.create(action=action, kind=kind, value=value, **fields)


def ask(client: Client, address: str = ADDRESS, **options: Any) -> Any:
    return client.get("/plain/", REMOTE_ADDR=address, **options)


def account_of(raw: str) -> str | None:
    """An API_KEY_RESOLVER that knows two keys of one account."""
    return "account-1" if raw in ("leaked", "another") else None


class TestDenied:
    def test_is_rejected_by_rules_that_nobody_can_confirm(
        self, client: Client, async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch, make_rule: MakeRule
    ) -> None:
        for address in (ADDRESS, "127.0.0.1"):
            enter(value=address)
        make_rule("all", failure_policy="open")
        always = {"CACHE_ALIAS": "ratelimit", "VERSION_CHECK_INTERVAL": 0}
        with override_settings(RATELIMITER=always):
            assert ask(client).status_code == 403
            for transport in (Transport, AsyncTransport):
                monkeypatch.setattr(transport, "call", Broken.check)
            assert [ask(client).status_code for _ in range(2)] == [403, 403]
            assert async_to_sync(async_client.get)("/plain/").status_code == 403
            assert ask(client, "192.0.2.8").status_code == 200

    def test_is_rejected_without_a_rule_and_without_redis(self, client: Client) -> None:
        with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit"}):
            enter()
            response = ask(client)
        assert response.status_code == 403
        assert response.json() == {
            "type": "about:blank",
            "title": "Forbidden",
            "status": 403,
            "detail": "You do not have access to this service. Trying again will not help.",
        }
        assert not {"Retry-After", "RateLimit", "X-RateLimit-Limit"} & set(response.headers)
        assert response.wsgi_request.ratelimit.access.value == ADDRESS
        assert ask(client, "192.0.2.8").status_code == 200

    def test_is_told_so_by_a_peek(self, make_rule: MakeRule) -> None:
        make_rule("all", quota=5)
        enter()
        enter("allow", value="192.0.2.8")
        denied, allowed, other = (
            limiter.peek(RequestFactory(REMOTE_ADDR=f"192.0.2.{last}").get("/")) for last in (7, 8, 9)
        )
        assert (denied.allowed, denied.retry_after) == (False, None)
        assert (allowed.allowed, allowed.results) == (True, ())
        assert other.binding is not None

    def test_a_user_and_an_api_key(self, client: Client, async_client: AsyncClient) -> None:
        user = User.objects.create(username="ada")
        enter(kind="user", value=str(user.pk))
        enter(kind="api_key", value=hash_api_key("leaked"))
        assert ask(client).status_code == 200
        assert ask(client, headers={"X-API-Key": "leaked"}).status_code == 403
        assert ask(client, headers={"X-API-Key": "another"}).status_code == 200
        client.force_login(user)
        async_client.force_login(user)
        assert ask(client).status_code == async_to_sync(async_client.get)("/native/").status_code == 403

    def test_an_api_key_by_its_own_hash_whatever_the_resolver_returns(self, client: Client) -> None:
        enter(kind="api_key", value=hash_api_key("leaked"))
        enter(kind="api_key", value=hash_api_key("unknown"))
        with override_settings(RATELIMITER={"API_KEY_RESOLVER": "tests.entry_points.test_access.account_of"}):
            found = [ask(client, headers={"X-API-Key": key}).status_code for key in ("leaked", "another", "unknown")]
        assert found == [403, 200, 200]

    def test_after_authentication_gives_back_what_was_spent_before(
        self, client: Client, make_rule: MakeRule, clock: Clock
    ) -> None:
        make_rule("per-ip", quota=5, partition_by=["ip"])
        make_rule("in-flight", quota=1, partition_by=["ip"], algorithm="concurrency", limit={"window_seconds": 60})
        ann, bob = (User.objects.create(username=name) for name in ("ann", "bob"))
        enter(kind="user", value=str(ann.pk))
        denied = [client.get("/throttled/", headers={"X-Name": "ann"}) for _ in range(7)]
        assert {response.status_code for response in denied} == {403}
        assert client.get("/throttled/", headers={"X-Name": str(bob)})["RateLimit"].startswith('"in-flight";r=0')
        left = [
            result.verdict.remaining for result in limiter.peek(RequestFactory().get("/")).results if result.verdict
        ]
        assert left == [1, 4]

    def test_a_page_for_people(self, client: Client) -> None:
        enter()
        response = ask(client, headers={"Accept": "text/html"})
        assert "You do not have access to this service." in response.content.decode()

    def test_by_the_rest_framework_once_the_user_is_known(self) -> None:
        user = User.objects.create(username="ada")
        enter(kind="user", value=str(user.pk))
        for throttle in (RuleThrottle, rated("9/min", UserRateThrottle)):
            assert statuses(view_of(throttle), 1, HTTP_X_NAME="ada") == [403]


class TestRemembering:
    def test_a_change_is_obeyed_when_the_time_is_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1_000.0
        monkeypatch.setattr(ttl_cache.time, "monotonic", lambda: now)
        assert storage.access_list().lookup(ADDRESS, None, None) is None
        entry = enter(expires_at=timezone.now() + timedelta(hours=1))
        assert storage.access_list().lookup(ADDRESS, None, None) is None
        now += 5
        found = storage.access_list()
        assert found.lookup(ADDRESS, None, None) is not None
        now += 5
        assert storage.access_list() is found  # nothing changed, so nothing is built again
        AccessEntry.objects.filter(pk=entry.pk).update(expires_at=timezone.now())
        now += 5
        assert storage.access_list().lookup(ADDRESS, None, None) is None

    def test_no_query_when_warm(self, django_assert_num_queries: DjangoAssertNumQueries) -> None:
        AccessEntry.objects.bulk_create(
            AccessEntry(kind="ip", value=f"198.{number >> 8}.{number & 255}.0/24", action="deny")
            for number in range(4096)
        )
        request = RequestFactory(REMOTE_ADDR="198.3.7.9").get("/")
        storage.access_list()  # a process looks for the table once
        storage.forget_entries()
        with django_assert_num_queries(1):
            assert storage.access_list().lookup("198.3.7.9", None, None)
        with django_assert_num_queries(0):
            assert storage.access_list().lookup("198.15.7.9", None, None)
        limiter.check(RequestFactory().get("/"))
        with django_assert_num_queries(0):
            assert not limiter.check(request).allowed

    def test_as_many_as_a_process_can_hold(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(storage, "MAX_ENTRIES", 2)
        for last in range(3):
            enter(value=f"192.0.2.{last}")
        found = storage.access_list()
        assert [found.lookup(f"192.0.2.{last}", None, None) is not None for last in range(3)] == [False, True, True]
        assert "more than 2 access entries" in caplog.text

    def test_a_row_of_sql_that_cannot_be_read_costs_only_itself(self, caplog: pytest.LogCaptureFixture) -> None:
        enter(value="nonsense")
        enter()
        assert storage.access_list().lookup(ADDRESS, None, None) is not None
        assert "is not in force" in caplog.text


class TestByDigest:
    """Entries for callers of whom only the digest is known."""

    def test_names_one_kind_of_identity(
        self, client: Client, async_client: AsyncClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        enter(kind="digest", value=f"ip:{digest(f'ip:{ADDRESS}')}")
        assert [ask(client).status_code, ask(client, "192.0.2.8").status_code] == [403, 200]
        request = RequestFactory().get("/plain/", REMOTE_ADDR=ADDRESS)
        assert limiter.check(request).access.kind == "digest"
        enter(kind="digest", value=f"ip:{digest('ip:127.0.0.1')}")
        storage.forget_entries()
        assert async_to_sync(async_client.get)("/plain/").status_code == 403
        told = [vars(each) for each in caplog.records if each.name == "django_ratelimiter"]
        assert {(each["identity"], each["partition"]) for each in told} == {
            ("ip", whole(digest(f"ip:{address}"))) for address in (ADDRESS, "127.0.0.1")
        }

    @pytest.mark.parametrize(("by", "value", "sent"), [
        ("header:X-Org", "header:X-Org:acme", {"HTTP_X_ORG": "acme"}),
        ("user or header:X-Org", "header:X-Org:acme", {"HTTP_X_ORG": "acme"}),
        ("ip|header:X-Org", f"ip:{ADDRESS}|header:X-Org:acme", {"HTTP_X_ORG": "acme"}),
        ("field:email", "field:email:ann@example.org", {"data": {"email": "ann@example.org"}}),
        ("api_key", f"api_key:{hash_api_key('leaked')}", {"HTTP_X_API_KEY": "leaked"}),
    ])  # fmt: skip
    def test_may_be_of_any_identity(self, client: Client, by: str, value: str, sent: dict[str, Any]) -> None:
        enter("allow", "api_key", hash_api_key("another"))
        Tier.objects.create(slug="gold", name="Gold").assignments.create(api_key_hash=hash_api_key("leaked"))
        enter(kind="digest", value=f"{by}:{digest(value)}")
        assert client.post("/plain/", REMOTE_ADDR=ADDRESS, **sent).status_code == 403
        assert client.post("/plain/", REMOTE_ADDR=ADDRESS).status_code == 200

    @pytest.mark.parametrize(("before", "after"), [
        ({"SECRET_KEY": "old"}, {"SECRET_KEY": "new", "SECRET_KEY_FALLBACKS": ["older", "old"]}),
        ({"HASH_KEY": "old"}, {"HASH_KEY": "new", "HASH_KEY_FALLBACKS": ["old"]}),
        ({"SECRET_KEY": "same"}, {"SECRET_KEY": "same", "HASH_KEY": "new", "HASH_KEY_FALLBACKS": [None]}),
    ])  # fmt: skip
    def test_outlives_a_change_of_the_hash_key(
        self, client: Client, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        def settings(written: dict[str, Any]) -> Any:
            own = {name: value for name, value in written.items() if name.startswith("HASH")}
            others = {name: value for name, value in written.items() if name not in own}
            return override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", **own}, **others)

        with settings(before):
            enter(kind="digest", value=f"ip:{digest(f'ip:{ADDRESS}')}")
        with settings(after):
            assert ask(client).status_code == 403
        with settings({**after, "SECRET_KEY_FALLBACKS": [], "HASH_KEY_FALLBACKS": []}):
            assert ask(client).status_code == 200

    def test_costs_nothing_where_there_is_none(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        enter(value="198.51.100.7")
        storage.access_list()
        monkeypatch.setattr(identity, "_digests_by", None)
        assert ask(client).status_code == 200
