"""A site below a prefix: the path of a rule, and an exempt path, is the path within the site."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.core.asgi import get_asgi_application
from django.http import HttpRequest
from django.test import Client, RequestFactory, override_settings
from django.test.utils import override_script_prefix
from django.urls import get_script_prefix, path

from django_ratelimiter.middleware import exempt_paths, exemption

from ..making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

EXEMPTING_ASSETS: dict[str, Any] = {"CACHE_ALIAS": "ratelimit", "EXEMPT_PATHS": ["/static"]}
ADMIN = (path("admin/", admin.site.urls),)


@pytest.fixture(autouse=True)
def _prefix_of_later_tests() -> Iterator[None]:
    """Django keeps the prefix of a thread's last request, and `reverse` begins with it."""
    with override_script_prefix(get_script_prefix()):
        yield


def status_over_asgi(inside: str, root: str) -> int:
    """What ASGI answers for a path within a site that a server or another application has mounted at `root`."""
    sent: list[Any] = []

    received = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in received:
            return message
        await asyncio.Event().wait()  # the client stays
        return {}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": root + inside,
        "root_path": root,
        "query_string": b"",
        "headers": [(b"host", b"testserver")],
    }
    application: Any = get_asgi_application()
    async_to_sync(application)(scope, receive, send)
    return int(sent[0]["status"])


def status_over_wsgi(inside: str, root: str) -> int:
    return Client().get(inside, SCRIPT_NAME=root).status_code  # type: ignore[arg-type]


ASK = {"wsgi": status_over_wsgi, "asgi": status_over_asgi}


@pytest.fixture(params=["wsgi", "asgi"])
def ask(request: pytest.FixtureRequest) -> Any:
    return ASK[request.param]


@pytest.mark.parametrize(
    "fields", [{}, {"path_kind": "exact", "path": "/plain/"}, {"path_kind": "prefix", "path": "/pl"}]
)
@pytest.mark.parametrize("limiter", [EXEMPTING_ASSETS, {"CACHE_ALIAS": "ratelimit"}])
def test_no_prefix_that_a_client_names_evades_a_rule(
    ask: Any, make_rule: MakeRule, fields: dict[str, Any], limiter: dict[str, Any]
) -> None:
    with override_settings(RATELIMITER=limiter):
        make_rule("rule", quota=1, **fields)
        assert [ask("/plain/", root) for root in ("/static", "", "/shop", "/admin")] == [200, 429, 429, 429]


def test_a_rule_names_no_prefix(ask: Any, make_rule: MakeRule) -> None:
    make_rule("rule", quota=1, path_kind="prefix", path="/shop/")
    assert [ask("/plain/", "/shop") for _ in range(2)] == [200, 200]


def test_the_top_of_a_site_is_a_slash(make_rule: MakeRule) -> None:
    """A mounted application's top has an empty path. Django makes "/" of it under WSGI only."""
    make_rule("top", quota=1, path_kind="exact", path="/")
    assert [ASK[each]("", "/shop") for each in ("asgi", "wsgi", "asgi")] == [404, 429, 429]


@override_settings(RATELIMITER=EXEMPTING_ASSETS)
def test_exempt_paths_are_paths_within_the_site(ask: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    assert [ask("/static/x.css", "/shop") for _ in range(2)] == [404, 404]


def is_exempt(inside: str, root: str) -> bool:
    with override_script_prefix(f"{root}/"):
        request = RequestFactory().get(inside, SCRIPT_NAME=root)
        request.urlconf = ADMIN  # type: ignore[assignment]
        return bool(exemption(request))


@pytest.mark.parametrize("root", ["", "/shop", "/admin"])
def test_the_admin_is_exempt_wherever_the_site_begins(root: str) -> None:
    assert [is_exempt(inside, root) for inside in ("/admin/login/", "/api/admin/", "/login/")] == [True, False, False]


def test_an_admin_is_exempt_whose_path_a_url_must_quote() -> None:
    found = exempt_paths((path("prüfung/", admin.site.urls),))
    assert found == ("/static/", "/prüfung/")


def test_what_is_exempt_does_not_depend_on_the_request() -> None:
    """A client that may name a prefix would else fill the cache of exempt paths, and have its own found there."""
    with override_script_prefix("/evil/"):
        found = exempt_paths(ADMIN)
    assert found == exempt_paths(ADMIN) == ("/static/", "/admin/")


def test_the_top_is_asked_for_without_a_path() -> None:
    request = HttpRequest()
    request.path = request.path_info = ""
    assert not exemption(request)
