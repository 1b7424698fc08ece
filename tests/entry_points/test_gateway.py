"""The view that gateways ask: whom it believes, what it decides, and what it answers, in threads and on event loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path

from django_ratelimiter import backend, gateway, signals
from django_ratelimiter.models import AccessEntry
from django_ratelimiter.rules import tiers

from ..limiter.test_limiter import Broken
from ..making import Awaiting, Clock, MakeRule
from ..urls import say_hello

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__), pytest.mark.usefixtures("trusting")]

PEER, CLIENT = "10.0.0.1", "203.0.113.1"


def addresses(make: Any, prefix: str) -> list[Any]:
    return [
        path(f"{prefix}/", make()),
        path(f"{prefix}/nginx/", make(rejected_status=403)),
        path(f"{prefix}/scoped/", make(scope="billing")),
        path(f"{prefix}/folding/", make(fold_paths=True)),
        path(f"{prefix}/users/", make(user_header="X-User-Id")),
        path(f"{prefix}/envoy<path:path>", make()),
    ]


urlpatterns = [*addresses(gateway.view, "sync"), *addresses(gateway.aview, "async"), path("hello/", say_hello)]


@contextmanager
def settings(**entries: Any) -> Iterator[None]:
    """Other entries of RATELIMITER, while the engine goes on counting."""
    engine = backend.get_engine()
    written = {"TRUSTED_PROXIES": ["10.0.0.0/8"], **entries}
    with override_settings(RATELIMITER=written), pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "_engine", engine)
        yield


@pytest.fixture
def trusting(clock: Clock) -> Iterator[None]:
    """Trust the gateway, and count by the clock."""
    tiers.forget()
    with settings():
        yield


@pytest.fixture
def ask(is_async: bool) -> Any:
    """Ask as a gateway does: `ask("/api/", method="GET", at="", **headers and environment)`."""

    def ask_by(uri: str | None = "/api/", method: str | None = "GET", *, at: str = "", **more: Any) -> Any:
        fields = {"X-Forwarded-Uri": uri, "X-Forwarded-Method": method, "X-Forwarded-For": CLIENT}
        headers = fields | {name.replace("_", "-"): value for name, value in more.pop("headers", {}).items()}
        sent: dict[str, Any] = {name: value for name, value in headers.items() if value is not None}
        options = {"REMOTE_ADDR": PEER, **more}
        client = Awaiting(enforce_csrf_checks=True) if is_async else Client(enforce_csrf_checks=True)
        by = getattr(client, options.pop("by", "get"))
        return by(f"/{'async' if is_async else 'sync'}/{at}", headers=sent, **options)

    return ask_by


def statuses(*answers: HttpResponse) -> list[int]:
    return [answer.status_code for answer in answers]


def test_the_request_that_the_gateway_describes_is_decided(ask: Any, make_rule: MakeRule) -> None:
    make_rule("exports", quota=1, path="/api/export/", path_kind="prefix", methods=["POST"], partition_by=["ip"])
    assert statuses(*(ask("/api/export/7?full=1", "POST") for _ in range(2))) == [200, 429]
    assert statuses(ask("/api/export/7", "GET"), ask("/api/", "POST")) == [200, 200]
    other = {"X-Forwarded-For": "203.0.113.2"}
    assert statuses(*(ask("/api/export/7", "POST", headers=other) for _ in range(2))) == [200, 429]


def test_a_caller_cannot_choose_its_method_by_a_header(ask: Any, make_rule: MakeRule) -> None:
    """Which servers read such a header is not known: a rule for POST must apply to POST, whatever it says."""
    make_rule("posts", quota=1, methods=["POST"])
    override = {"X-HTTP-Method-Override": "GET", "X-Method-Override": "GET"}
    assert statuses(*(ask("/api/", "POST", headers=override) for _ in range(2))) == [200, 429]
    assert statuses(ask("/api/", "GET", headers=dict.fromkeys(override, "POST"))) == [200]


def test_an_answer_has_all_fields(ask: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    passing, rejected = ask(), ask()
    assert (passing.status_code, passing.content) == (200, b"")
    assert passing["RateLimit-Policy"] == '"all";q=1;w=86400'
    assert passing["X-RateLimit-Remaining"] == "0"
    assert passing["Cache-Control"] == "private, no-store, max-age=0"
    assert rejected.status_code == 429
    assert rejected["Retry-After"] == "86400"
    assert rejected["RateLimit"] == '"all";r=0;t=86400'
    assert rejected["Content-Type"] == "application/problem+json"
    assert rejected.json()["reference"] == rejected["X-RateLimit-Reference"]
    assert {"private", "no-store"} <= set(rejected["Cache-Control"].split(", "))


def test_the_question_itself_is_not_limited(ask: Any, make_rule: MakeRule) -> None:
    make_rule("reads", quota=2, methods=["GET"])
    assert statuses(*(ask("/api/", "POST") for _ in range(4))) == [200] * 4
    assert ask("/api/", "GET")["X-RateLimit-Remaining"] == "1"


def test_the_users_page_is_in_the_language_of_the_accept_field(ask: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    ask()
    page = ask("/cart/?page=2", headers={"Accept": "text/html"})
    assert page["Content-Type"].startswith("text/html")
    assert b'href="/cart/?page=2"' in page.content


@pytest.mark.parametrize(
    "trusted", [[], ["192.0.2.0/24"], ["unix"], ["192.0.2.0/24", "forwarded"]], ids=lambda trusted: "+".join(trusted)
)
def test_nobody_else_is_believed(ask: Any, make_rule: MakeRule, trusted: list[str]) -> None:
    make_rule("all", quota=1)
    with settings(TRUSTED_PROXIES=trusted):
        answers = [ask(at=at) for at in ("", "nginx/", "users/", "envoy/api/") for _ in range(2)]
    assert statuses(*answers) == [403] * 8
    assert answers[0].content.decode().startswith("10.0.0.1 is not a trusted proxy")
    assert ask().status_code == 200, "nothing was charged"


def test_a_number_of_proxies_trusts_the_peer(ask: Any, make_rule: MakeRule) -> None:
    make_rule("ip", quota=1, partition_by=["ip"])
    with settings(TRUSTED_PROXIES=1):
        assert statuses(ask(), ask(), ask(headers={"X-Forwarded-For": "203.0.113.2"})) == [200, 429, 200]


@pytest.mark.parametrize(
    ("trusted", "sent", "expected"),
    [
        ((), {"Forwarded": 'for="203.0.113.1"'}, 429),
        ((), {"X-Forwarded-For": "198.51.100.7, 203.0.113.1"}, 429),  # a client chose what stands left of it
        ((), {"X-Real-IP": "203.0.113.1"}, 400),
        ((), {"X-Real-IP": "203.0.113.2", "X-Forwarded-For": "203.0.113.1"}, 429),
        ((), {}, 400),
        ((), {"X-Forwarded-For": ""}, 400),
        ((), {"X-Forwarded-For": "", "Forwarded": "for=203.0.113.1"}, 400),
        (("forwarded",), {"Forwarded": "for=203.0.113.1", "X-Forwarded-For": "203.0.113.2"}, 429),
        (("forwarded",), {"X-Forwarded-For": "203.0.113.1"}, 400),
        (("x-real-ip",), {"X-Real-IP": "203.0.113.1", "X-Forwarded-For": "203.0.113.2"}, 429),
        (("x-real-ip",), {"X-Forwarded-For": "203.0.113.1"}, 400),
        (("x-forwarded-for",), {"X-Real-IP": "203.0.113.1"}, 400),
    ],
)
def test_the_client_is_the_one_that_the_gateway_names(
    ask: Any, make_rule: MakeRule, trusted: tuple[str, ...], sent: dict[str, str], expected: int
) -> None:
    make_rule("ip", quota=1, partition_by=["ip"])
    assert ask().status_code == 200
    with settings(TRUSTED_PROXIES=["10.0.0.0/8", *trusted]):
        assert ask(headers={"X-Forwarded-For": None, **sent}).status_code == expected


@pytest.mark.parametrize(
    ("uri", "method", "named"),
    [
        (None, "GET", "X-Forwarded-Uri"),
        ("*", "OPTIONS", "X-Forwarded-Uri"),
        ("api/", "GET", "X-Forwarded-Uri"),
        ("/api/", None, "X-Forwarded-Method"),
        ("/api/", "GET /", "X-Forwarded-Method"),
    ],
)
def test_what_is_missing_is_named(ask: Any, uri: str | None, method: str | None, named: str) -> None:
    answer = ask(uri, method)
    assert (answer.status_code, answer.content) == (400, f"The request header {named} is missing or wrong.\n".encode())
    assert "no-store" in answer["Cache-Control"]


#: Targets of requests, and whether a rule for paths that begin with /api/export applies.
TARGETS = {
    "/api/export": True,
    "/api/export?x=/../../": True,
    "/api/exporting": True,
    "/api//export": True,
    "/x/../api/export": True,
    "/x/%2e%2e/api/./export": True,
    "/../api/export": True,
    "/api%2Fexport": True,
    "/%61pi/export": True,
    "http://shop.example/api/export": True,
    "HTTPS://shop.example:8443/api/export?a": True,
    "/api/export/../other": False,
    "/api/%2565xport": False,
    "/x?y=/api/export": False,
    "http://shop.example": False,
}


def test_a_path_is_compared_as_gateways_do(ask: Any, make_rule: MakeRule) -> None:
    make_rule("exports", 100, path="/api/export", path_kind="prefix")
    assert {uri: "RateLimit" in ask(uri) for uri in TARGETS} == TARGETS


@pytest.mark.parametrize(
    "uri",
    [
        "/api/export/..%2fx",
        "/static/..;/api/export",
        "/api/export%2f../x",
        "/api/export/..%5cx",
        "/api/export/..\\x",
        "/a/b%2fc/../../api/export",
        "/a/b\\c/../../api/export",
        "/api/export//../x",
        "/api/export/.//./../x",
    ],
)
def test_a_path_that_servers_read_in_different_ways_is_rejected(ask: Any, uri: str) -> None:
    answer = ask(uri)
    assert answer.status_code == 400
    assert answer.content == b"The path has dot segments that servers read in different ways.\n"


@pytest.mark.parametrize("uri", ["/api/export;x=1", "/api;/export", "/api/export%3Bx", "/api\\export", "/api%5Cexport"])
def test_a_path_in_which_some_servers_see_another_is_rejected_unless_paths_are_folded(
    ask: Any, make_rule: MakeRule, uri: str
) -> None:
    make_rule("exports", 1, path="/api/export", path_kind="exact")
    answer = ask(uri)
    assert (answer.status_code, b"read in different ways" in answer.content) == (400, True)
    assert statuses(ask("/api/export"), ask(uri, at="folding/")) == [200, 429]


@pytest.mark.parametrize(
    "fields", [{"path": "/api/export"}, {"path": "/api/export/"}, {"path": "/api/", "path_kind": "prefix"}]
)
def test_other_spellings_of_a_path_are_one_if_paths_are_folded(
    ask: Any, make_rule: MakeRule, fields: dict[str, str]
) -> None:
    uris = ["/api/export", "/api/export/", "/API/Export/", "/api;a=1/export;x/", "//Api/./export", "/%41pi/export"]
    make_rule("exports", len(uris), **{"path_kind": "exact", **fields})
    make_rule("all", 100)
    answers = [ask(uri, at="folding/") for uri in uris]
    assert statuses(*answers) == [200] * len(uris)
    assert f'"all";r={100 - len(uris)};' in answers[-1]["RateLimit"]
    assert statuses(*(ask(uri, at="folding/") for uri in uris)) == [429] * len(uris)
    assert ask("/other", at="folding/").status_code == 200
    make_rule("letters", 1, path="/Other/Letters", path_kind="exact")
    assert statuses(*(ask("/Other/Letters", at="folding/") for _ in range(2))) == [200, 429]


def test_where_this_site_has_its_admin_and_assets_others_have_what_is_limited(ask: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1, partition_by=["header:X-Path"])
    for uri in ("/admin/x", "/static/x", "/media/x", "/healthz"):
        assert statuses(*(ask(uri, headers={"X-Path": uri}) for _ in range(2))) == [200, 429]


def test_a_question_opens_no_transaction(ask: Any, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    make_rule("all", quota=1)
    with CaptureQueriesContext(connection) as queries:
        assert statuses(ask(), ask()) == [200, 429]
    assert [each["sql"] for each in queries if each["sql"].startswith("BEGIN")] == []
    for make in (gateway.view, gateway.aview):
        assert vars(make())["_non_atomic_requests"] == set(connections)


def test_the_path_of_a_rule_is_exact(ask: Any, make_rule: MakeRule) -> None:
    paths = {"/": "/", "/a/": "/a/", "/a/.": "/a/", "/a/b/..": "/a/", "/a/b/../..": "/", "/caf%C3%A9/%ff": "/café/%FF"}
    for number, exact in enumerate(sorted({*paths.values()})):
        make_rule(f"exact-{number}", 100, path=exact, path_kind="exact")
    exact_paths = dict(zip([f'"exact-{number}"' for number in range(3)], sorted({*paths.values()}), strict=True))
    assert {uri: exact_paths[ask(uri)["RateLimit"].partition(";")[0]] for uri in paths} == paths


def test_views_of_this_site_have_no_say_in_paths_of_others(ask: Any, make_rule: MakeRule) -> None:
    make_rule("view", view_name="hello")
    make_rule("route", path="hello/", path_kind="route")
    assert "RateLimit" not in ask("/hello/")


def test_envoy_asks_by_its_own_method_and_path(ask: Any, make_rule: MakeRule) -> None:
    make_rule("exports", quota=1, path="/api/export", path_kind="prefix", methods=["POST"], partition_by=["ip"])
    forged = {"X-Forwarded-Uri": "/", "X-Forwarded-Method": "GET"}
    answers = [ask(at="envoy/api/export/7?full=1", by="post", headers=forged) for _ in range(2)]
    assert statuses(*answers) == [200, 429]
    assert statuses(ask(at="envoy/api/export/7"), ask(at="envoy/", by="post")) == [200, 200]
    assert ask(at="envoy//api//export/", by="post").status_code == 429
    assert ask(at="envoy/x/../api/export/", by="post").status_code == 400
    assert ask(at="envoyage/", by="post").status_code == 400


def test_nginx_gets_the_one_status_that_it_understands(ask: Any, make_rule: MakeRule) -> None:
    AccessEntry.objects.create(action="deny", kind="ip", value="203.0.113.9")
    make_rule("all", quota=1)
    passing, rejected = ask(at="nginx/"), ask(at="nginx/")
    assert (passing.status_code, gateway.STATUS_FIELD in passing) == (200, False)
    assert (rejected.status_code, rejected[gateway.STATUS_FIELD]) == (403, "429")
    assert rejected["Retry-After"] == "86400"
    denied = ask(at="nginx/", headers={"X-Forwarded-For": "203.0.113.9"})
    assert (denied.status_code, denied[gateway.STATUS_FIELD]) == (403, "403")


def test_a_user_is_known_only_where_a_field_is_named_for_it(ask: Any, make_rule: MakeRule, people: None) -> None:
    make_rule("by-user", quota=1, partition_by=["user"])
    ann, bob = {"X-User-Id": "1"}, {"X-User-Id": "2"}
    answers = [ask(at="users/", headers=headers) for headers in (ann, ann, bob, {}, {"X-User-Id": " "})]
    assert statuses(*answers) == [200, 429, 200, 200, 200]
    assert "RateLimit" not in answers[3]
    assert "RateLimit" not in ask(headers=ann)


def test_a_queue_holds_the_answer(ask: Any, make_rule: MakeRule, clock: Clock) -> None:
    limit = {"window_seconds": 5, "burst": 2, "max_delay_ms": 9_000}
    make_rule("queue", quota=1, algorithm="leaky_bucket", limit=limit)
    assert statuses(ask(), ask()) == [200, 200]
    assert clock.slept == [5]


def test_nothing_stays_in_flight(ask: Any, make_rule: MakeRule) -> None:
    make_rule("one", quota=1, algorithm="concurrency", limit={"window_seconds": 60})
    assert statuses(*(ask() for _ in range(3))) == [200] * 3


def test_exempt_paths_are_free_and_preflights_are_not(ask: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with settings(EXEMPT_PATHS=["/assets/"]):
        assert statuses(*(ask("/assets/a.css", "OPTIONS", headers=preflight) for _ in range(2))) == [200, 200]
        assert statuses(*(ask("/api/", "OPTIONS", headers=preflight) for _ in range(2))) == [200, 429]


def test_a_denied_caller_and_an_outage(ask: Any, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    AccessEntry.objects.create(action="deny", kind="ip", value="203.0.113.9")
    make_rule("closed", failure_policy="closed")
    assert ask(headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 403

    monkeypatch.setattr(backend.get_engine(), "check", Broken().check)
    answer = ask()
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")


def test_signals_get_the_forwarded_request(ask: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    seen = []

    def note(request: HttpRequest, **_signal: Any) -> None:
        asked = request.method, request.path, request.GET["page"], request.headers["X-Colour"]
        seen.append((*asked, request.resolver_match))

    signals.limit_exceeded.connect(note)
    try:
        for _ in range(2):
            ask("/api/?page=2", "DELETE", headers={"X-Colour": "red"})
    finally:
        signals.limit_exceeded.disconnect(note)
    assert seen == [("DELETE", "/api/", "2", "red", None)]


def test_a_body_is_not_read(ask: Any, make_rule: MakeRule) -> None:
    make_rule("field", quota=1, partition_by=["field:name"], missing_partition="deny")
    body = {"data": '{"name": "ann"}', "content_type": "application/json"}
    assert ask(at="envoy/api/", by="post", **body).status_code == 429


@override_settings(
    MIDDLEWARE=[
        "django.middleware.cache.UpdateCacheMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.http.ConditionalGetMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
        "django.middleware.cache.FetchFromCacheMiddleware",
    ]
)
def test_middleware_of_the_project_leaves_the_question_alone(ask: Any, make_rule: MakeRule) -> None:
    """No login, no CSRF token, no response of a cache and none that is not modified."""
    make_rule("all", quota=1)
    assert statuses(*(ask(headers={"If-None-Match": "*"}) for _ in range(3))) == [200, 429, 429]
    assert ask(at="envoy/", by="post").status_code == 429


@pytest.mark.parametrize(
    "options", [{"rejected_status": 200}, {"rejected_status": 1}, {"user_header": "X User"}, {"scope": 5}]
)
def test_wrong_options_are_rejected_at_once(options: Any) -> None:
    for make in (gateway.view, gateway.aview):
        with pytest.raises(ValueError, match="must be"):
            make(**options)


def test_a_switched_off_limiter_lets_pass_what_trusted_proxies_ask(ask: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    with settings(ENABLED=False):
        assert statuses(ask(), ask()) == [200, 200]
        assert ask(REMOTE_ADDR="198.51.100.1").status_code == 403


def test_of_a_gateway_that_understands_one_status_the_client_s_fault_is_told_in_a_field(ask: Any) -> None:
    answer = ask("/api/..;/export", at="nginx/")
    assert (answer.status_code, answer["X-RateLimit-Status"]) == (403, "400")
    assert "no-store" in answer["Cache-Control"]
    plain = ask("/api/..;/export")
    assert (plain.status_code, "X-RateLimit-Status" in plain) == (400, False)
    lacking = ask(None, at="nginx/")  # which the gateway has to mend: no client can
    assert (lacking.status_code, "X-RateLimit-Status" in lacking) == (400, False)
