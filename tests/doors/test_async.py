"""The middleware on an event loop: whatever may block happens in a thread, and answers are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, modify_settings, override_settings

from django_ratelimiter import connection, headers, limiter, middleware
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.middleware import RateLimitMiddleware
from django_ratelimiter.models import Tier

from .conftest import Clock, MakeRule
from .test_limiter import Broken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.doors.urls")]

INNER_SYNC_ONLY = {"MIDDLEWARE": {"append": "tests.doors.test_async.sync_only"}}


def sync_only(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that can do no better."""
    return lambda request: get_response(request)


@pytest.fixture
def get(async_client: AsyncClient) -> Any:
    return async_to_sync(async_client.get)


def off_the_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, failing where an event loop would wait for it."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return function(*args, **kwargs)

    return checked


@pytest.mark.parametrize("path", ["/plain/", "/native/", "/throttled/", "/items/1/", "/no/such/"])
def test_the_answers_are_those_of_the_synchronous_handler(
    client: Client, async_client: AsyncClient, make_rule: MakeRule, clock: Clock, path: str
) -> None:
    make_rule("all", quota=2, partition_by=["ip"])
    make_rule("users", quota=1, partition_by=["user"])
    asynchronous = [async_to_sync(async_client.get)(path, REMOTE_ADDR="203.0.113.1") for _ in range(3)]
    synchronous = [client.get(path, REMOTE_ADDR="203.0.113.2") for _ in range(3)]
    for one, other in zip(asynchronous, synchronous, strict=True):
        assert one.status_code == other.status_code
        assert dict(one.items()) == dict(other.items())
        assert one.content == other.content
    assert asynchronous[-1].status_code == 429


def test_what_may_block_is_done_in_a_thread(
    async_client: AsyncClient, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    tier = Tier.objects.create(slug="free", name="Free", default_for="authenticated")
    make_rule("users", quota=2, tier=tier, partition_by=["user"])
    make_rule("leases", quota=9, algorithm="concurrency", limit={"window_seconds": 60})
    async_client.force_login(User.objects.create(username="ann"))
    for owner, name in ((MemoryEngine, "check"), (MemoryEngine, "release"), (SessionStore, "load")):
        monkeypatch.setattr(owner, name, off_the_loop(getattr(owner, name)))
    monkeypatch.setattr(middleware, "refusal", off_the_loop(headers.refusal))
    answers = [async_to_sync(async_client.get)("/native/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].asgi_request.ratelimit.results[1].tier.slug == "free"


def test_a_page_of_the_projects_may_ask_for_the_user(
    get: Any, async_client: AsyncClient, make_rule: MakeRule, tmp_path: Any, settings: Any
) -> None:
    (tmp_path / "django_ratelimiter").mkdir()
    (tmp_path / "django_ratelimiter" / "refused.html").write_text("Sorry, {{ user.username }}")
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    make_rule("all", quota=1)
    async_client.force_login(User.objects.create(username="ann"))
    get("/native/")
    assert get("/native/", headers={"Accept": "text/html"}).content == b"Sorry, ann"


def test_in_front_of_a_synchronous_middleware_it_is_synchronous(get: Any, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("queue", 1, algorithm="leaky_bucket", limit={"window_seconds": 2, "burst": 9, "max_delay_ms": 2_000})
    with modify_settings(**INNER_SYNC_ONLY):
        assert [get("/native/").status_code for _ in range(3)] == [200, 200, 200]
        clock.now_us = 1_700_000_000_000_000
        assert get("/native/").status_code == 429
    assert async_to_sync(AsyncClient().get)("/native/").status_code == 200


def test_it_is_of_the_kind_of_what_it_wraps() -> None:
    async def native(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    for wrapped in (native, HttpResponse):
        made = RateLimitMiddleware(wrapped)  # type: ignore[arg-type]
        assert iscoroutinefunction(made) is iscoroutinefunction(made.process_view) is (wrapped is native)


def test_acheck_decides_as_check_does(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("mail", quota=5, scope="mail")
    request = RequestFactory().get("/")
    decision = async_to_sync(limiter.acheck)(request, scope="mail", cost=5)
    assert decision.allowed
    assert decision is request.ratelimit  # type: ignore[attr-defined]
    assert not limiter.check(RequestFactory().get("/"), scope="mail").allowed


@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "ENABLED": False})
def test_switched_off_nothing_is_decided(get: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    assert [get("/native/").status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(("policy", "status"), [("open", 200), ("closed", 503)])
def test_without_the_engine_failure_policies_decide(
    get: Any, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch, policy: str, status: int
) -> None:
    make_rule("all", quota=1, failure_policy=policy)
    assert connection.get_engine()
    monkeypatch.setattr(limiter, "get_engine", Broken)
    assert [get("/native/").status_code for _ in range(2)] == [status, status]
