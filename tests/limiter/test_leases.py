"""Leases of the concurrency algorithm: taken with the request, released with its response, whatever becomes of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, modify_settings, override_settings

from django_ratelimiter import backend, limiter
from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.limiter.io import LoopIO
from django_ratelimiter.middleware import RateLimitMiddleware

from ..making import Clock, MakeRule, Remote
from .test_limiter import Broken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

WINDOW = 60
LEASES: dict[str, Any] = {"algorithm": "concurrency", "limit": {"window_seconds": WINDOW}}
FURTHEST_OUT = {"MIDDLEWARE": {"prepend": "django.middleware.http.ConditionalGetMiddleware"}}
WITHOUT_MIDDLEWARE = {"MIDDLEWARE": {"remove": "django_ratelimiter.middleware.RateLimitMiddleware"}}


class Watched(MemoryEngine):
    """Notes how many leases were ended by each call."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.released: list[int] = []

    def release(self, verdicts: Any) -> None:
        verdicts = list(verdicts)
        self.released.append(len(verdicts))
        super().release(verdicts)

    def held(self, slug: str = "one-at-once") -> int:
        """Leases that are held under a rule of quota 10 that is not split."""
        return sum(10 - verdict.remaining for verdict in self.peek([charge(slug)]))


def charge(slug: str) -> Charge:
    from django_ratelimiter.identity import digest

    return Charge(f"{slug}:{digest('')}", Limit(10, WINDOW, "concurrency"))


@pytest.fixture
def engine(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Watched:
    engine = Watched(clock)
    monkeypatch.setattr(backend, "_engine", engine)
    return engine


@pytest.fixture
def leasing(engine: Watched, make_rule: MakeRule) -> Watched:
    """The engine, and a rule whose leases it holds."""
    make_rule("one-at-once", quota=10, **LEASES)
    return engine


@pytest.fixture
def get(get: Any, client: Client, async_client: AsyncClient) -> Any:
    """Ask for a page, also for one that fails."""
    client.raise_request_exception = async_client.raise_request_exception = False
    return get


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/plain/", 200),
        ("/native/", 200),
        ("/no/such/", 404),
        ("/broken/", 500),
        ("/broken/natively/", 500),
        ("/throttled/", 200),
        ("/throttled/scoped/", 200),
    ],
)
def test_a_lease_ends_with_the_response(get: Any, leasing: Watched, path: str, status: int) -> None:
    assert [get(path).status_code for _ in range(3)] == [status] * 3
    assert leasing.released == [1, 1, 1]
    assert leasing.held() == 0


def test_a_lease_is_held_while_the_view_works(make_rule: MakeRule, engine: Watched) -> None:
    make_rule("one-at-once", quota=1, **LEASES)
    request = RequestFactory().get("/")
    assert limiter.check(request).allowed
    rejected = RequestFactory().get("/")
    assert limiter.check(rejected).retry_after == WINDOW
    rejected.close()
    assert engine.released == []
    request.close()
    request.close()
    assert engine.released == [1]
    assert limiter.check(RequestFactory().get("/")).allowed


@pytest.mark.parametrize("path", ["/streamed/", "/streamed/natively/"])
@pytest.mark.parametrize("parts", [0, 1, 3])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_holds_its_lease_until_it_is_closed(
    rf: RequestFactory, leasing: Watched, path: str, parts: int
) -> None:
    response = WSGIHandler()(rf.get(path).environ, lambda *_: lambda _: None)
    stream = iter(response)
    for _ in range(parts):
        next(stream)
        assert leasing.held() == 1
    assert leasing.released == []
    response.close()  # as servers do, at the end of the stream or when the client has gone
    assert leasing.released == [1]


@modify_settings(**FURTHEST_OUT)
def test_a_lease_ends_though_another_response_is_sent(get: Any, leasing: Watched) -> None:
    assert get("/tagged/", headers={"If-None-Match": '"1"'}).status_code == 304
    assert leasing.released == [1]


@pytest.mark.parametrize("path", ["/broken/", "/broken/natively/"])
@override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True)
def test_a_lease_ends_though_no_response_is_sent(get: Any, leasing: Watched, path: str) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        get(path)
    assert leasing.released == [1]


def test_a_lease_ends_though_the_worker_is_told_to_exit(rf: RequestFactory, leasing: Watched) -> None:

    def exit_(request: HttpRequest) -> Any:
        limiter.check(request)
        raise SystemExit

    with pytest.raises(SystemExit):
        RateLimitMiddleware(exit_)(rf.get("/"))
    assert leasing.released == [1]


async def cancelled(work: Any, begun: list[Any]) -> None:
    """Cancel this work as soon as something has begun."""
    task = asyncio.ensure_future(work)
    while not begun:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_lease_ends_when_the_task_is_cancelled(rf: RequestFactory, leasing: Watched) -> None:
    held: list[int] = []

    async def endless(request: HttpRequest) -> Any:
        await limiter.acheck(request)
        held.append(leasing.held())
        await asyncio.Event().wait()

    async_to_sync(cancelled)(RateLimitMiddleware(endless)(rf.get("/")), held)  # type: ignore[arg-type]
    assert held == [1]
    assert leasing.released == [1]


def test_a_lease_ends_when_the_task_is_cancelled_behind_the_view(
    rf: RequestFactory, make_rule: MakeRule, leasing: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rule("failures", charge_when="failure")
    refunding: list[object] = []

    async def endless(_io: object, verdicts: object) -> None:
        refunding.append(verdicts)
        await asyncio.Event().wait()

    async def answer(request: HttpRequest) -> HttpResponse:
        await limiter.acheck(request)
        return HttpResponse()

    monkeypatch.setattr(LoopIO, "refund", endless)
    async_to_sync(cancelled)(RateLimitMiddleware(answer)(rf.get("/")), refunding)  # type: ignore[arg-type]
    assert leasing.released == [1], "Django closes no response that it has not got"


@pytest.mark.parametrize("fails", [False, True])
def test_a_lease_ends_that_a_thread_takes_after_the_task_was_cancelled(
    rf: RequestFactory, leasing: Watched, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    limiter.check(rf.get("/"), cost=0)  # reads the rules in this thread
    asking, heard = threading.Event(), threading.Event()

    def check(*args: Any, **kwargs: Any) -> Any:
        asking.set()
        assert heard.wait(300)
        return MemoryEngine.check(leasing, *args, **kwargs)

    async def never(request: HttpRequest) -> Any:
        raise AssertionError

    async def cancel() -> None:
        middleware = RateLimitMiddleware(never)  # type: ignore[arg-type]
        middleware.get_response = middleware.process_view  # type: ignore[assignment]
        task = asyncio.ensure_future(middleware(rf.get("/")))  # type: ignore[arg-type]
        await asyncio.to_thread(asking.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_soon(heard.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(leasing, "check", check)
    if fails:  # the task is cancelled nevertheless
        monkeypatch.setattr(leasing, "release", Broken().release)
    monkeypatch.setattr(backend, "_engine", Remote(leasing))
    asyncio.run(cancel())
    assert leasing.released == ([] if fails else [1])
    assert leasing.held() == fails


def test_what_the_second_stage_rejects_holds_no_lease_of_the_first(
    get: Any, make_rule: MakeRule, leasing: Watched
) -> None:
    make_rule("per-user", quota=1, partition_by=["user"])
    User.objects.create(username="ann")
    assert [get("/throttled/", headers={"X-Name": "ann"}).status_code for _ in range(2)] == [200, 429]
    assert leasing.held() == 0
    assert leasing.released in ([1], [1, 0])


@pytest.mark.parametrize("middleware", [True, False])
def test_leases_of_both_stages_end(get: Any, make_rule: MakeRule, leasing: Watched, middleware: bool) -> None:
    make_rule("per-user", quota=10, partition_by=["user"], **LEASES)
    User.objects.create(username="ann")
    with modify_settings(**({} if middleware else WITHOUT_MIDDLEWARE)):
        assert get("/throttled/", headers={"X-Name": "ann"}).status_code == 200
    assert sum(leasing.released) == 2


def test_shadow_leases_end_too(get: Any, make_rule: MakeRule, engine: Watched) -> None:
    make_rule("one-at-once", quota=10, mode="shadow", **LEASES)
    get("/plain/")
    assert engine.released == [1]


def test_a_release_that_fails_is_logged_and_nobody_hears_of_it(
    get: Any, leasing: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leasing, "release", Broken().release)
    assert get("/plain/").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "A lease could not be released; it will expire: out of reach"
    ]


def test_a_local_lease_ends_in_this_process(
    get: Any, make_rule: MakeRule, engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rule("one-at-once", quota=2, **LEASES)
    monkeypatch.setattr(backend, "_engine", Broken())
    assert [get("/plain/").status_code for _ in range(3)] == [200] * 3  # one at once, at half the quota
    held = RequestFactory().get("/plain/")
    assert limiter.check(held).allowed
    assert get("/plain/").status_code == 429
    monkeypatch.setattr(backend, "_engine", engine)
    held.close()
    assert engine.released == []
    monkeypatch.setattr(backend, "_engine", Broken())
    assert get("/plain/").status_code == 200


@pytest.mark.parametrize("rule", ["one-at-once", "other"])
def test_only_who_met_a_lease_asks_twice(
    client: Client, make_rule: MakeRule, redis_client: Any, rule: str, django_assert_num_queries: Any
) -> None:
    assert isinstance(backend.get_engine(), LocalFirstEngine)
    make_rule("one-at-once", quota=10, **LEASES, path="/plain/", path_kind="exact")
    make_rule("other", quota=100)
    path = "/plain/" if rule == "one-at-once" else "/tagged/"
    client.get(path)
    redis_client.config_resetstat()
    with django_assert_num_queries(0):
        client.get(path)
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls == (2 if rule == "one-at-once" else 1)
