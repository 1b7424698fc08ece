"""Usage is looked at, given back, charged by the response, or known only when the work is done."""

from __future__ import annotations

from collections.abc import Callable
from gc import collect
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory

from django_ratelimiter import limiter
from django_ratelimiter.decision import Decision
from django_ratelimiter.limiter import refunds
from django_ratelimiter.middleware import RateLimitMiddleware

from ..making import Clock, MakeRule
from .test_limiter import Broken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.limiter.refund_urls")]

ENGINE = "django_ratelimiter.backend._engine"


def ask() -> HttpRequest:
    return RequestFactory().get("/")


def remaining(request: HttpRequest | None = None) -> list[int]:
    return [result.verdict.remaining for result in limiter.peek(request or ask()).results if result.verdict]


@pytest.fixture
def post(either: Any, client: Client, async_client: AsyncClient) -> Any:
    return either(client.post, async_client.post)


@pytest.fixture
def peek(either: Any) -> Callable[..., Decision]:
    return either(limiter.peek, limiter.apeek)  # type: ignore[no-any-return]


@pytest.fixture
def refund(either: Any) -> Callable[[Decision], None]:
    return either(limiter.refund, limiter.arefund)  # type: ignore[no-any-return]


class TestPeek:
    def test_spends_and_keeps_nothing(
        self, peek: Callable[..., Decision], make_rule: MakeRule, redis_client: redis.Redis
    ) -> None:
        make_rule("all", quota=2)
        limiter.check(ask())
        peek(ask())  # the first connection of an event loop notes which run of the server it found
        before = {key: redis_client.type(key) for key in redis_client.scan_iter("*")}
        request = ask()
        for _ in range(3):
            assert peek(request).allowed
        assert not peek(request, cost=2).allowed
        assert not hasattr(request, "ratelimit")
        assert {key: redis_client.type(key) for key in redis_client.scan_iter("*")} == before
        assert limiter.check(ask()).allowed

    def test_tells_what_the_next_request_would_be_told(
        self, peek: Callable[..., Decision], make_rule: MakeRule, clock: Clock
    ) -> None:
        make_rule("all", quota=1)
        request = ask()
        limiter.check(request)
        assert not peek(request).allowed
        assert peek(request).retry_after == 86_400
        assert request.ratelimit.allowed  # type: ignore[attr-defined]


class TestRefund:
    def test_gives_back_all_and_once(self, refund: Callable[[Decision], None], make_rule: MakeRule) -> None:
        make_rule("all", quota=5, algorithm="sliding_window_log", limit={"window_seconds": 3_600})
        before = remaining()
        decision = limiter.check(ask(), cost=2)
        kept = limiter.check(ask())
        assert remaining() == [before[0] - 3]
        for _ in range(2):
            refund(decision)
        refund(kept)
        assert remaining() == before

    def test_of_what_was_counted_in_this_process(
        self, refund: Callable[[Decision], None], make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch, clock: Clock
    ) -> None:
        make_rule("all", quota=4)
        limiter.check(ask())
        with monkeypatch.context() as patched:
            patched.setattr(ENGINE, Broken())
            for _ in range(5):  # two at a time
                decision = limiter.check(ask(), cost=2)
                assert decision.allowed
                refund(decision)
        assert remaining() == [3]

    def test_that_fails_is_logged(
        self,
        refund: Callable[[Decision], None],
        make_rule: MakeRule,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        make_rule("all")
        decision = limiter.check(ask())
        monkeypatch.setattr(ENGINE, Broken())
        refund(decision)
        assert "could not be refunded" in caplog.text


class TestChargeWhen:
    @pytest.mark.parametrize("status", [200, 302, 400, 404, 500])
    @pytest.mark.parametrize("charge_when", ["any", "success", "failure"])
    def test_the_response_says(
        self, get: Any, make_rule: MakeRule, clock: Clock, charge_when: str, status: int
    ) -> None:
        make_rule("all", quota=9, charge_when=charge_when)
        is_charged = charge_when == "any" or (status >= 400) == (charge_when == "failure")
        answers = [get(f"/status/{status}/") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [status] * 3
        left = [6] if is_charged else [9]
        assert remaining() == left
        assert answers[-1].headers["RateLimit"].startswith(f'"all";r={left[0]}')

    def test_a_view_that_raises_has_failed(self, is_async: bool, make_rule: MakeRule, clock: Clock) -> None:
        make_rule("all", quota=9, charge_when="success")
        for _ in range(2):
            if not is_async:
                assert Client(raise_request_exception=False).get("/broken/").status_code == 500
            else:
                client = AsyncClient(raise_request_exception=False)
                assert async_to_sync(client.get)("/broken/").status_code == 500
        assert remaining() == [9]

    def test_rules_beside_it_are_charged_as_ever(self, get: Any, make_rule: MakeRule, clock: Clock) -> None:
        make_rule("every", quota=9)
        make_rule("failed", quota=9, charge_when="failure")
        get("/status/200/")
        get("/status/404/")
        assert remaining() == [7, 8]

    def test_another_request_is_made_to_the_engine_only_if_something_is_given_back(
        self, get: Any, make_rule: MakeRule, redis_client: redis.Redis
    ) -> None:
        make_rule("failed", quota=9, charge_when="failure")
        get("/status/404/")
        for status, calls in ((404, 1), (200, 2)):
            redis_client.config_resetstat()
            get(f"/status/{status}/")
            assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == calls

    def test_the_project_may_say_that_a_request_has_failed(self, get: Any, make_rule: MakeRule, clock: Clock) -> None:
        make_rule("failed", quota=9, charge_when="failure")
        get("/failed/")
        assert remaining() == [8]


class TestFailedLogins:
    """The recipe: a rule by address for the login view, charged for failures, and Django's own view."""

    @pytest.fixture(autouse=True)
    def _rule(self, make_rule: MakeRule, clock: Clock) -> None:
        refunds.current_request.set(lambda: None)  # a request of an earlier test is the current one while it lives
        User.objects.create_user("ann", password="right")
        make_rule(
            "logins", quota=3, path="/login/", path_kind="exact", methods=["POST"], partition_by=["ip"],
            charge_when="failure", failure_policy="closed",
        )  # fmt: skip

    def log_in(self, post: Any, password: str, **options: Any) -> int:
        return int(post("/login/", {"username": "ann", "password": password}, **options).status_code)

    def test_only_failures_are_charged(self, post: Any) -> None:
        passwords = ["wrong", "right", "wrong", "right", "right", "right", "wrong", "wrong", "right"]
        assert [self.log_in(post, password) for password in passwords] == [
            200, 302, 200, 302, 302, 302, 200, 429, 429,
        ]  # fmt: skip

    def test_it_is_known_whose_failure_it_is_though_nobody_names_the_request(
        self, post: Any, make_rule: MakeRule
    ) -> None:
        make_rule("guesses", quota=2, path="/guess/", path_kind="exact", charge_when="failure")
        passwords = ["right", "wrong", "right", "right", "wrong", "wrong"]
        asked = [post("/guess/", {"username": "ann", "password": password}).status_code for password in passwords]
        assert asked == [200] * 5 + [429]
        assert authenticate(username="ann", password="wrong") is None  # and this is nobody's
        assert refunds.current_request.get()() is None

    def test_request_is_current_from_its_decision_to_its_response(self, make_rule: MakeRule) -> None:
        make_rule("all", charge_when="failure")
        limiter.check(request := ask())  # without the middleware
        assert refunds.current_request.get()() is request

        def answer(inner: HttpRequest) -> HttpResponse:
            assert limiter.check(inner).allowed is (refunds.current_request.get()() is inner)
            return HttpResponse()

        RateLimitMiddleware(answer)(ask())
        assert refunds.current_request.get()() is request
        del request
        collect()
        assert refunds.current_request.get()() is None

    def test_nobody_else_is_kept_out(self) -> None:
        assert [self.log_in(Client().post, "wrong") for _ in range(4)][-1] == 429
        assert self.log_in(Client().post, "right", REMOTE_ADDR="203.0.113.2") == 302

    @pytest.mark.parametrize("request_", [None, object(), {}])
    def test_without_a_request_nothing_is_marked(self, request_: Any) -> None:
        assert authenticate(request_, username="ann", password="wrong") is None

    def test_a_form_that_is_only_looked_at_is_free(self, get: Any) -> None:
        assert [get("/login/").status_code for _ in range(9)] == [200] * 9
