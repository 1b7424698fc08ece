"""One trace of requests through every entry point, on Redis and in memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, ClassVar, NamedTuple

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter import backend, gateway
from django_ratelimiter.decision import Decision
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.models import Rule
from django_ratelimiter.rules import cache
from django_ratelimiter.throttling import RuleThrottle

from ..making import Clock, MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

#: 400, of which each rule rejects some; 4,000 in `make test ARGS=--long`. What the engines decide is compared
#: elsewhere; here, who asks them.
REQUESTS = max(400, int(os.environ.get("TWIN_STEPS", "2_000")) // 5)
#: So many of them in two stages as well.
STAGED = REQUESTS // 2
MIDDLEWARE = "django_ratelimiter.middleware.RateLimitMiddleware"
GATEWAY = "10.0.0.1"
START_US = 1_700_000_000_000_000


class Given(BaseAuthentication):
    """Whom the trace says."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        user = request._request.given  # type: ignore[attr-defined]
        return (user, None) if user.is_authenticated else None


class Throttled(APIView):
    authentication_classes: ClassVar = [Given]
    throttle_classes: ClassVar = [RuleThrottle]
    throttle_scope = "trace"

    def get(self, request: Request) -> Response:
        return Response()

    post = get


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def native(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("plain/", plain),
    path("native/", native),
    path("throttled/", Throttled.as_view()),
    path("decorated/", ratelimit("trace")(plain)),
    path("decorated/natively/", ratelimit("trace")(native)),
    path("gateway/", gateway.view(scope="trace", user_header="X-User-Id")),
    path("gateway/natively/", gateway.aview(scope="trace", user_header="X-User-Id")),
]


class Noted(gateway.ForwardedRequest):
    """The latest request that a gateway has asked about."""

    latest: ClassVar[Noted]

    def __init__(self, environ: dict[str, Any]) -> None:
        super().__init__(environ)
        Noted.latest = self


class ByClock:
    """An engine that takes its time from a clock, for event loops too."""

    def __init__(self, engine: Any, clock: Clock) -> None:
        self._engine, self._clock = engine, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def check(self, charges: Any, **options: Any) -> Any:
        return self._engine.check(charges, **{**options, "now_us": self._clock()})

    def to_async(self) -> ByClock:
        return ByClock(self._engine.to_async(), self._clock)


class Asked(NamedTuple):
    """One request of the trace."""

    now_us: int
    method: str
    address: str
    user: Any


def trace(length: int) -> Iterator[Asked]:
    """Users and strangers at a few addresses: in crowds, alone, and after a break."""
    random = Random(4)
    users = [User(pk=number, username=f"user{number}") for number in range(1, 8)] + [AnonymousUser()] * 3
    now_us = START_US
    for _ in range(length):
        now_us += random.choice((0, 1, 1_000, 50_000, 333_333)) if random.random() < 0.995 else 20_000_000
        yield Asked(
            now_us, random.choice(("GET", "GET", "POST")), f"203.0.113.{random.randrange(6)}", random.choice(users)
        )


@pytest.fixture
def rules(make_rule: MakeRule) -> Callable[[str], None]:
    """Rules of several algorithms, partitions and modes, all of one scope ("" = met everywhere)."""

    def make(scope: str) -> None:
        minute, ten = {"window_seconds": 60}, {"window_seconds": 10}
        make_rule("all", 190, None, "sliding_window_log", minute, scope=scope)
        make_rule("ip", 30, None, "sliding_window_counter", minute, scope=scope, partition_by=["ip"])
        make_rule("user", 5, None, "token_bucket", {**ten, "burst": 7}, scope=scope, partition_by=["user"])
        make_rule("writes", 8, None, "gcra", ten, scope=scope, partition_by=["ip"], methods=["POST"], cost=2)
        make_rule("tried", 3, None, "fixed_window", ten, scope=scope, partition_by=["user", "ip"], mode="shadow")

    return make


def decisions(url: str, clock: Clock, *, middleware: bool, is_async: bool, length: int = REQUESTS) -> list[Decision]:
    """What became of each request of the trace at this address."""
    with override_settings(MIDDLEWARE=[MIDDLEWARE] if middleware else []):
        handler = BaseHandler()
        handler.load_middleware(is_async=is_async)
    decided: list[Decision] = []

    def prepared() -> Iterator[HttpRequest]:
        for now_us, method, address, user in trace(length):
            clock.now_us = now_us
            request = HttpRequest()
            request.method, request.path, request.path_info = method, url, url
            request.META = {
                "REQUEST_METHOD": method,
                "REMOTE_ADDR": address,
                "SERVER_NAME": "testserver",
                "SERVER_PORT": "80",
            }
            request.given = user  # type: ignore[attr-defined]
            request.user = AnonymousUser() if "throttled" in url else user  # the framework finds out by itself
            if "gateway" in url:
                ask_as_gateway(request)
            yield request

    def note(request: Any, response: Any) -> None:
        decision = Noted.latest.ratelimit if "gateway" in url else request.ratelimit  # type: ignore[attr-defined]
        assert decision.allowed == (response.status_code == 200)
        decided.append(decision)

    async def ask_natively() -> None:
        for request in prepared():
            note(request, await handler.get_response_async(request))

    if is_async:
        async_to_sync(ask_natively)()
    else:
        for request in prepared():
            note(request, handler.get_response(request))
    return decided


def ask_as_gateway(request: HttpRequest) -> None:
    """Let a gateway ask about this request."""
    user: Any = request.user
    request.META |= {
        "REMOTE_ADDR": GATEWAY,
        "HTTP_X_FORWARDED_FOR": request.META["REMOTE_ADDR"],
        "HTTP_X_FORWARDED_METHOD": request.method,
        "HTTP_X_FORWARDED_URI": "/plain/",
        "HTTP_X_USER_ID": str(user.pk or ""),
    }
    request.method, request.user = "GET", AnonymousUser()


def told(decision: Decision) -> list[Any]:
    """All that a decision says."""
    verdicts = [(each.rule.slug, each.verdict) for each in decision.results if each.verdict]
    return [decision.allowed] + [
        (slug, verdict.allowed, verdict.remaining, verdict.retry_after, verdict.reset_after)
        for slug, verdict in verdicts
    ]


#: Where the trace is sent, whether the middleware decides there, whether on an event loop, and the scope of the rules.
ENTRY_POINTS: dict[str, tuple[str, bool, bool, str]] = {
    "middleware": ("/plain/", True, False, ""),
    "middleware, natively": ("/native/", True, True, ""),
    "throttle": ("/throttled/", False, False, "trace"),
    "throttle, on an event loop": ("/throttled/", False, True, "trace"),
    "decorator": ("/decorated/", False, False, "trace"),
    "decorator, natively": ("/decorated/natively/", False, True, "trace"),
    "gateway": ("/gateway/", True, False, ""),
    "gateway, natively": ("/gateway/natively/", True, True, "trace"),
}


@pytest.mark.once(first=True)
@override_settings(RATELIMITER={"TRUSTED_PROXIES": [GATEWAY], "DEADLINE_MS": 10_000})
def test_every_entry_point_decides_the_same(
    rules: Callable[[str], None], clock: Clock, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("django.request", "django_ratelimiter"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", True)
    monkeypatch.setattr(gateway, "ForwardedRequest", Noted)
    monkeypatch.setattr(backend, "_engine", MemoryEngine(clock))
    rules("")
    first = decisions("/plain/", clock, middleware=True, is_async=False)
    expected = list(map(told, first))
    rejected = [{str(result.rule) for result in decision.rejected_by} for decision in first if not decision.allowed]
    assert REQUESTS // 50 < len(rejected) < REQUESTS * 9 // 10
    assert set.union(*rejected) == {"all", "ip", "user", "writes"}
    assert any(
        each.verdict and not each.verdict.allowed for one in first for each in one.results if each.mode == "shadow"
    )

    # In two stages: those who are rejected in the first do not meet the rules of the second.
    monkeypatch.setattr(backend, "_engine", MemoryEngine(clock))
    staged = decisions("/throttled/", clock, middleware=True, is_async=False, length=STAGED)
    assert [decision.allowed for decision in staged] == [decision.allowed for decision in first[:STAGED]]

    redis_client.config_resetstat()
    for namespace, (name, (url, middleware, is_async, scope)) in enumerate(ENTRY_POINTS.items()):
        monkeypatch.setattr(backend, "_engine", ByClock(RedisEngine(redis_client, str(namespace)), clock))
        with cache.editing():
            Rule.objects.update(scope=scope)
        found = list(map(told, decisions(url, clock, middleware=middleware, is_async=is_async)))
        assert found == expected, name
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls >= len(ENTRY_POINTS) * REQUESTS, "each request is decided on Redis"
