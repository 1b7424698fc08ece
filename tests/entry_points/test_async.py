"""The middleware on an event loop: whatever may block happens elsewhere, and answers are the same."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
import redis
from asgiref.sync import ThreadSensitiveContext, async_to_sync, iscoroutinefunction
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.core.exceptions import SynchronousOnlyOperation
from django.core.handlers import base
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, RequestFactory, modify_settings, override_settings
from django.urls import get_resolver
from django.utils.functional import SimpleLazyObject

from django_ratelimiter import backend, limiter
from django_ratelimiter.decision import Decision
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.limiter import io
from django_ratelimiter.middleware import RateLimitMiddleware
from django_ratelimiter.models import Tier, TierAssignment
from django_ratelimiter.rules import cache, reading, tiers
from django_ratelimiter.rules.stored import storage

from ..making import Clock, MakeRule, request_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

INNER_SYNC_ONLY = {"MIDDLEWARE": {"append": "tests.entry_points.test_async.sync_only"}}


def sync_only(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware that can do no better."""
    return lambda request: get_response(request)


@pytest.fixture
def get(async_client: AsyncClient) -> Any:
    return async_to_sync(async_client.get)


def test_nothing_blocks_the_event_loop(
    async_client: AsyncClient, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that knows nothing yet, then one that asks for its tiers again, then one whose rules were edited."""
    pro = Tier.objects.create(slug="pro", name="Pro", default_for="authenticated")
    TierAssignment.objects.create(tier=pro, api_key_hash=hash_api_key("secret"))
    for by, algorithm in (("ip", "gcra"), ("user", "token_bucket"), ("api_key", "concurrency")):
        make_rule(by, quota=90, partition_by=[by], algorithm=algorithm, limit={"window_seconds": 60})
    async_client.force_login(User.objects.create(username="ann"))
    callers = [(AsyncClient(), {}), (async_client, {}), (AsyncClient(), {"X-API-Key": "secret"})]
    complaints: list[str] = []

    def guard(owner: Any, name: str, blocks: Callable[..., bool]) -> None:
        function = getattr(owner, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                if blocks(*args):
                    complaints.append(f"{name}: {''.join(traceback.format_stack(limit=12))}")
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, guarded)

    async def ask() -> list[Any]:
        return [await client.get("/native/", headers=sent) for client, sent in callers for _ in range(9)]

    assert get_resolver().url_patterns
    for name in ("ensure_connection", "cursor"):
        guard(BaseDatabaseWrapper, name, lambda *_given: True)
    for name in ("connect", "recv", "recv_into", "send", "sendall"):
        guard(socket.socket, name, lambda sock, *_given: sock.gettimeout() != 0)
    guard(time, "sleep", lambda *_given: True)
    guard(Future, "result", lambda future, *_given: not future.done())
    for forget in (list, tiers.forget, cache.invalidate):
        forget()
        answers = async_to_sync(ask)()
        assert [answer.status_code for answer in answers] == [200] * 27
    assert {result.rule.slug for answer in answers for result in answer.asgi_request.ratelimit.results} == {
        "ip", "user", "api_key"
    }  # fmt: skip
    assert complaints == []


def test_a_warm_decision_needs_no_thread(
    make_rule: MakeRule, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = Tier.objects.create(slug="free", name="Free", default_for="authenticated")
    make_rule("users", quota=9, tier=tier, partition_by=["user"])
    user = User.objects.create(username="ann")

    async def decide() -> Decision:
        return await limiter.acheck(request_of(user))

    async def decide_thrice() -> list[Decision]:
        cold = await decide()
        with monkeypatch.context() as patched:
            patched.setattr("asgiref.sync.SyncToAsync.__call__", None)
            patched.setattr(asyncio, "to_thread", None)
            patched.setattr("django_ratelimiter.engine.redis.RedisEngine.check", None)
            return [cold, await decide(), await decide()]

    decisions = async_to_sync(decide_thrice)()
    assert [each.results[0].verdict.remaining for each in decisions if each.results[0].verdict] == [8, 7, 6]
    assert decisions[1].results[0].tier.slug == "free"  # type: ignore[union-attr]
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] >= 3


@pytest.mark.parametrize("is_djangos", [True, False])
def test_the_user_is_read_as_the_request_offers_it(make_rule: MakeRule, clock: Clock, is_djangos: bool) -> None:
    """What Django put there it also offers to await. Where another's lazy user stands, Django's is somebody else."""
    make_rule("users", quota=1, partition_by=["user"])
    ann = User.objects.create(username="ann")
    asked = []

    async def auser() -> User:
        asked.append("auser")
        return ann

    def user() -> User:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        asked.append("user")
        return ann

    def ask() -> bool:
        request = RequestFactory().get("/")
        request.session = SessionStore()
        AuthenticationMiddleware(lambda request: HttpResponse()).process_request(request)
        request.auser = auser
        if not is_djangos:
            request.user = SimpleLazyObject(user)  # type: ignore[assignment]
        return async_to_sync(limiter.acheck)(request).allowed

    assert [ask(), ask()] == [True, False]
    assert asked == (["auser"] * 2 if is_djangos else ["user"] * 2)


def test_many_tasks_share_one_reading_of_stale_rules(
    make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    make_rule("all", quota=100)
    loads = []

    def load() -> Any:
        loads.append(threading.get_ident())
        return real_load()

    real_load = storage.load
    monkeypatch.setattr(storage, "load", load)

    async def decide_all() -> list[Decision]:
        return await asyncio.gather(*(limiter.acheck(RequestFactory().get("/")) for _ in range(50)))

    assert all(decision.results for decision in async_to_sync(decide_all)())
    assert len(loads) == 1
    backend.get_engine().publish(cache.invalidate() and storage.committed_version())
    cache._state.outdated = False  # as if another process had made that edit
    loads.clear()
    assert all(decision.results for decision in async_to_sync(decide_all)())
    assert len(loads) == 1


@pytest.mark.parametrize("why", ["", "edited", "session"])
def test_check_says_what_to_do_on_an_event_loop(make_rule: MakeRule, why: str) -> None:
    """Engine and rules have to be found, rules are edited, the user has to be read."""
    request = RequestFactory().get("/")

    async def ask() -> None:
        limiter.check(request)

    if why:
        make_rule("all", quota=1, partition_by=["user"])
        limiter.check(RequestFactory().get("/"))  # from now on engine and rules are known
        request.user = SimpleLazyObject(AnonymousUser)  # type: ignore[assignment]
    with transaction.atomic():
        if why == "edited":
            make_rule("more", quota=1)
        with pytest.raises(SynchronousOnlyOperation, match=rf"{why}.*acheck"):
            async_to_sync(ask)()


def test_a_page_of_the_projects_may_ask_for_the_user(
    get: Any, async_client: AsyncClient, make_rule: MakeRule, tmp_path: Any, settings: Any
) -> None:
    (tmp_path / "django_ratelimiter").mkdir()
    (tmp_path / "django_ratelimiter" / "rejected.html").write_text("Sorry, {{ user.username }}")
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


def test_tasks_wait_for_each_other_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the first may be waiting for a connection that the thread of the second has."""
    looks, end = iter([lambda: end.wait(60), lambda: end.set() or "by itself"]), threading.Event()

    def look() -> Any:
        if threading.current_thread() is threading.main_thread():
            raise SynchronousOnlyOperation
        return next(looks)()

    async def look_up() -> Any:
        async with ThreadSensitiveContext():
            return await io.LOOP.look_up(look, together=True)

    async def together() -> list[Any]:
        return await asyncio.gather(look_up(), look_up())

    with override_settings(RATELIMITER={"DEADLINE_MS": 50}):
        assert asyncio.run(together()) == [True, "by itself"]


def test_event_loops_that_have_ended_leave_no_lock_behind() -> None:
    """A lock that somebody has waited for holds on to its event loop."""

    def look() -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise SynchronousOnlyOperation

    async def together() -> None:
        await asyncio.gather(*(io.LOOP.look_up(look, together=True) for _ in range(2)))

    for _ in range(3):
        asyncio.run(together())
    assert len(reading._locks) == 1


def wrapped(get_response: Any) -> Any:
    """Wrap each hook in a plain function."""
    made = RateLimitMiddleware(get_response)
    for name in ("process_view", "process_template_response", "process_exception"):
        hook = getattr(made, name)
        plain = wraps(hook)(lambda *given, hook=hook: hook(*given))
        plain.__self__ = made  # Django reads it
        setattr(made, name, plain)
    return made


wrapped.sync_capable = wrapped.async_capable = True  # type: ignore[attr-defined]


@pytest.fixture(params=["sentry", "plain"])
def wrapper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "plain":
        with override_settings(MIDDLEWARE=[f"{__name__}.wrapped"]):
            yield
        return
    module = pytest.importorskip("sentry_sdk.integrations.django.middleware", reason="sentry-sdk is not installed")
    monkeypatch.setattr(base, "import_string", base.import_string)  # what the next line replaces is put back
    monkeypatch.setattr(base.BaseHandler, "load_middleware", base.BaseHandler.load_middleware)
    module.patch_django_middlewares()
    yield


@pytest.mark.usefixtures("wrapper")
def test_the_middleware_decides_in_the_wrappers_of_tools_that_measure_it(get: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=2)
    assert [get(path).status_code for path in ("/native/", "/throttled/", "/nowhere/")] == [200, 200, 429]
