"""The middleware and the throttle together, as a client sees them, under either kind of handler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.cache import cache as django_cache
from django.http import HttpRequest, HttpResponse
from django.test import Client, modify_settings, override_settings
from django.urls import include, path, re_path
from django.utils import translation
from django.utils.functional import lazy

from django_ratelimiter.backend import get_engine
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine.redis import partition_notes
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.middleware import exempt_paths
from django_ratelimiter.models import Tier, TierAssignment
from django_ratelimiter.rules import tiers

from ..counting import usage_of
from ..limiter.test_limiter import Broken
from ..making import MakeRule, client_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]


#: A piece of a path that is translated.
BY_LANGUAGE = lazy(lambda: f"{translation.get_language()}/", str)()


@pytest.fixture(autouse=True)
def _forget_tiers() -> None:
    tiers.forget()


@pytest.fixture
def client(either_client: Any) -> Any:
    return either_client


def statuses(client: Client, *paths: str, **options: Any) -> list[int]:
    return [client.get(path, **options).status_code for path in paths]


def test_a_rejection_says_why_and_when_to_come_back(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1, algorithm="token_bucket")
    admitted = client.get("/plain/")
    assert (admitted.status_code, admitted["X-RateLimit-Remaining"]) == (200, "0")
    rejected = client.get("/plain/")
    assert rejected.status_code == 429
    assert rejected["RateLimit-Policy"] == '"all";q=1;w=86400'
    assert rejected["RateLimit"].startswith('"all";r=0;t=')
    assert 86_390 < int(rejected["Retry-After"]) <= 86_400
    assert rejected["Content-Type"] == "application/problem+json"
    assert rejected.json()["violated-policies"] == ["all"]


@pytest.mark.parametrize(
    ("fields", "paths", "expected"),
    [
        ({"path_kind": "route", "path": "items/<int:pk>/"}, ["/items/1/", "/items/2/", "/plain/"], [200, 429, 200]),
        ({"view_name": "plain"}, ["/plain/", "/plain/", "/items/1/"], [200, 429, 200]),
        ({"path_kind": "prefix", "path": "/items/"}, ["/items/1/", "/items/2/", "/plain/"], [200, 429, 200]),
        ({"path_kind": "exact", "path": "/no/such/"}, ["/no/such/", "/no/such/"], [404, 429]),
        ({"methods": ["POST"]}, ["/plain/", "/plain/"], [200, 200]),
    ],
)
def test_rules_match_routes_views_paths_and_what_no_view_answers(
    client: Client, make_rule: MakeRule, fields: dict[str, Any], paths: list[str], expected: list[int]
) -> None:
    make_rule("rule", quota=1, **fields)
    assert statuses(client, *paths) == expected


def test_a_busy_process_answers_requests_that_no_rule_matches(
    client: Client, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask for the version now and then, in a call that meets nobody, while callers wait to be told of."""
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 0)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _end: 4)  # each fourth call is weighed
    make_rule("items", path_kind="prefix", path="/items/", partition_by=["header:X-Caller"])
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "VERSION_CHECK_INTERVAL": 0}):
        for number in range(20):
            assert client.get("/items/1/", headers={"X-Caller": str(number)}).status_code == 200
            assert statuses(client, "/plain/", "/plain/") == [200, 200]


def test_the_admin_and_assets_are_exempt(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    assert statuses(client, "/admin/login/", "/admin/login/", "/static/x.css", "/static/x.css") == [200, 200, 404, 404]
    assert statuses(client, "/plain/", "/plain/") == [200, 429]
    assert client.options("/plain/", headers={"Origin": "https://example.org"}).status_code == 429


def test_health_views_are_exempt_and_what_is_called_alike_is_not(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    assert statuses(client, *["/health/", "/healthz"] * 2) == [200] * 4
    assert statuses(client, "/health/records/", "/livez") == [200, 429]  # the last has no view


@pytest.mark.urls("tests.entry_points.root_admin_urls")
def test_an_admin_at_the_root_exempts_no_site(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    assert statuses(client, "/login/", "/login/") == [200, 429]


@pytest.mark.parametrize(
    "patterns",
    [
        i18n_patterns(path("admin/", admin.site.urls)),
        [path("", include([path(BY_LANGUAGE, admin.site.urls)]))],
        [re_path(BY_LANGUAGE, include([path("admin/", admin.site.urls)]))],
    ],
)
def test_an_admin_is_exempt_in_each_language(patterns: list[Any]) -> None:
    for language in ("de", "en", "de"):
        with translation.override(language):
            [*_, found] = exempt_paths(tuple(patterns))
            assert found.startswith(f"/{language}/")


@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "EXEMPT_PATHS": ["/plain/"]})
def test_exempt_paths_replace_the_usual_ones(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    assert statuses(client, "/plain/", "/plain/", "/admin/login/", "/admin/login/") == [200, 200, 200, 429]


def test_what_is_decided_before_credentials_are_checked_is_counted_for_no_tier(
    client: Client, make_rule: MakeRule
) -> None:
    Tier.objects.create(slug="guests", name="Guests", default_for="anonymous")
    make_rule("all", quota=100)
    User.objects.create(username="ann")
    statuses(client, "/throttled/", headers={"Authorization": "Name ann"})
    statuses(client, "/throttled/")
    assert {count.label for count in usage_of(get_engine())} == {"all|", "all|guests"}


def test_a_known_api_key_is_decided_before_authentication(client: Client, make_rule: MakeRule) -> None:
    tier = Tier.objects.create(slug="pro", name="Pro")
    TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key("key"))
    make_rule("per-key", quota=1, tier=tier, partition_by=["api_key"])
    wrong = {"headers": {"X-Name": "nobody", "X-API-Key": "key"}}
    assert statuses(client, "/throttled/", "/throttled/", **wrong) == [401, 429]


def test_the_frameworks_429_and_503_bear_our_fields(
    client: Client, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rule("uploads", quota=1, scope="uploads", failure_policy="closed")
    client.get("/throttled/scoped/")
    rejected = client.get("/throttled/scoped/")
    assert rejected["RateLimit-Policy"] == '"uploads";q=1;w=86400'
    assert int(rejected["Retry-After"]) > 86_000
    assert "detail" in rejected.json()
    assert rejected["Cache-Control"] == "no-store"
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())
    closed = client.get("/throttled/scoped/")
    assert (closed.status_code, closed["Retry-After"]) == (503, "1")
    assert "RateLimit" not in closed


def slow_down(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse("slow down")


UPDATE, FETCH = (f"django.middleware.cache.{name}CacheMiddleware" for name in ("Update", "FetchFrom"))


@pytest.fixture(params=["as Django says", "both before", "in one"])
def _cached(request: pytest.FixtureRequest) -> Iterator[None]:
    """Django's cache of whole pages, around the limiter as its documentation says, or before it."""
    around = {
        "as Django says": {"prepend": UPDATE, "append": FETCH},
        "both before": {"prepend": [UPDATE, FETCH]},
        "in one": {"prepend": "django.middleware.cache.CacheMiddleware"},
    }
    with modify_settings(MIDDLEWARE=around[request.param]), override_settings(CACHE_MIDDLEWARE_SECONDS=60):
        django_cache.clear()
        yield
        django_cache.clear()


@pytest.mark.usefixtures("_cached")
def test_a_cached_page_bears_no_fields_of_another_client(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=3, partition_by=["header:X-Device"])
    first, second = (client.get("/plain/", headers={"X-Device": device}) for device in "ab")
    assert first["RateLimit"].startswith('"all";r=2')
    assert "Age" in second  # it comes from the cache
    own = {"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
    assert {*first.headers} - {*second.headers} == own


@pytest.mark.usefixtures("_cached")
@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "RESPONSE": "tests.entry_points.test_middleware.slow_down"})
def test_a_rejection_is_never_cached_and_never_a_success(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1, partition_by=["header:X-Device"])
    asked = [("/items/1/", "a"), ("/plain/", "a"), ("/plain/", "b")]
    told = [client.get(path, headers={"X-Device": device}) for path, device in asked]
    assert (told[1].status_code, told[1].content) == (429, b"slow down")
    assert told[2].json() == {"ok": True}


def vary(client: Client) -> str | None:
    answer = client.get("/plain/")
    assert answer.status_code == 200
    return answer.headers.get("Vary")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        *(([], None), (["ip"], None), (["header:X-Device"], None), (["api_key"], None)),
        *((["user"], "Cookie"), (["session"], "Cookie"), (["user", "ip"], "Cookie")),
    ],
)
def test_a_response_varies_by_cookie_only_where_the_decision_may_depend_on_user_or_session(
    client: Client, make_rule: MakeRule, names: list[str], expected: str | None
) -> None:
    make_rule("all", quota=9, partition_by=names, missing_partition="ip")
    assert vary(client) == expected


def test_a_response_varies_by_cookie_where_there_are_tiers(client: Client, make_rule: MakeRule) -> None:
    tier = Tier.objects.create(slug="pro", name="Pro")
    TierAssignment.objects.create(tier=tier, partition="ip:192.0.2.7", multiplier=2)
    make_rule("all", quota=9, partition_by=["ip"])
    assert vary(client) == "Cookie"


def test_nobodys_session_is_read_in_vain(make_rule: MakeRule, django_assert_num_queries: Any) -> None:
    make_rule("all", quota=9, partition_by=["ip"])
    client = client_of(User.objects.create(username="ann"))
    client.get("/plain/")
    with django_assert_num_queries(0):
        client.get("/plain/")


# Identities: what is chosen, invented or missing finds no counter of its own


OWN = {"CACHE_ALIAS": "ratelimit", "IDENTITIES": {"tenant": f"{__name__}.tenant_of"}}


def tenant_of(request: Any) -> str | None:
    return request.headers.get("X-Host-Tenant")


def posted(client: Client, times: int, path: str = "/plain/", **sent: Any) -> list[int]:
    return [client.post(path, **sent).status_code for _ in range(times)]


def test_parts_of_the_path_and_ones_own_identities_split_counters(client: Client, make_rule: MakeRule) -> None:
    with override_settings(RATELIMITER=OWN):
        make_rule("items", quota=1, partition_by=["path:pk", "tenant"])
        acme = {"headers": {"X-Host-Tenant": "acme"}}
        assert posted(client, 2, "/items/1/", **acme) == [200, 429]
        assert posted(client, 2, "/items/2/", **acme) == [200, 429]
        assert posted(client, 2, "/items/1/", headers={"X-Host-Tenant": "other"}) == [200, 429]
        assert posted(client, 3, "/items/1/") == [200] * 3
        assert posted(client, 3, "/plain/", **acme) == [200] * 3
