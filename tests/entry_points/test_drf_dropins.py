"""The throttles that take the place of REST framework's own count as those do, but exactly, and together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.db import connection as database
from django.test import Client
from rest_framework.request import Request
from rest_framework.test import force_authenticate
from rest_framework.views import APIView

from django_ratelimiter.engine import Algorithm
from django_ratelimiter.throttling import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle

from .conftest import Clock
from .drf_views import factory, gets, rates, statuses, view_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.drf_views")]


@rates
@pytest.mark.usefixtures("people")
def test_anonymous_requests_share_an_address_and_users_have_no_limit(client: Client) -> None:
    assert gets(client, "/anon/", 2) == [200, 429]
    assert client.get("/anon/", REMOTE_ADDR="203.0.113.9").status_code == 200
    assert gets(client, "/anon/", 3, X_Name="ann") == [200] * 3


@rates
@pytest.mark.usefixtures("people")
def test_each_user_has_a_limit_and_so_has_each_address(client: Client) -> None:
    for headers in ({"X_Name": "ann"}, {"X_Name": "bob"}, {}):
        assert gets(client, "/user/", 3, **headers) == [200, 200, 429]


@rates
@pytest.mark.parametrize("throttle", [UserRateThrottle, ScopedRateThrottle])
def test_a_device_has_its_own_counter_and_a_token_that_of_its_user(throttle: type) -> None:
    """Number 5 of another model is not user 5; who authenticates without a query stands for user 5."""
    token_user = pytest.importorskip("rest_framework_simplejwt.models").TokenUser
    view = view_of(throttle, throttle_scope="user", authentication_classes=[])
    device = SimpleNamespace(pk=5, is_authenticated=True)

    def ask(user: object) -> int:
        force_authenticate(request := factory.get("/"), user=user)
        return view(request).status_code

    assert [ask(device), ask(User(pk=5)), ask(device), ask(device)] == [200, 200, 200, 429]
    assert [ask(token_user({"user_id": 5})), ask(User(pk=5))] == [200, 429]


@rates
def test_a_scope_has_the_rate_of_its_name_and_a_view_without_one_has_no_limit(client: Client) -> None:
    assert gets(client, "/export/", 4) == [200, 200, 200, 429]
    assert gets(client, "/unscoped/", 9) == [200] * 9


@rates
def test_the_client_is_told_as_by_any_rule(client: Client) -> None:
    admitted = client.get("/anon/")
    assert admitted["RateLimit-Policy"] == '"code:anon";q=1;w=86400'
    rejected = client.get("/anon/")
    assert rejected.status_code == 429
    assert 86_390 < int(rejected["Retry-After"]) <= 86_400
    assert rejected["RateLimit"].startswith('"code:anon";r=0;t=')
    assert rejected["Cache-Control"] == "no-store"


@pytest.mark.usefixtures("clock")
def test_of_several_throttles_a_rejection_spends_nothing_of_the_earlier() -> None:
    class Ample(AnonRateThrottle):
        scope, rate = "ample", "5/day"

    class Scarce(AnonRateThrottle):
        scope, rate = "scarce", "1/day"

    assert statuses(view_of(Ample, Scarce), 9) == [200] + [429] * 8
    assert statuses(view_of(Ample), 5) == [200] * 4 + [429]


def test_a_rejected_client_waits_for_the_last_throttle(clock: Clock) -> None:
    class Short(AnonRateThrottle):
        scope, rate = "short", "1/min"

    class Long(AnonRateThrottle):
        scope, rate = "long", "2/hour"

    view = view_of(Short, Long)
    waits = []
    for _ in range(4):
        waits.append(view(factory.get("/")).headers.get("Retry-After"))
        clock.now_us += 30_000_000
    assert waits == [None, "30", None, "3510"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("same", [{"scope": "login", "rate": "2/day"}, {"scope": None, "rate": "2/day"}])
def test_throttles_of_one_view_that_count_by_other_keys_are_all_obeyed(same: dict[str, str]) -> None:
    class Field(SimpleRateThrottle):
        field = ""

        def get_cache_key(self, request: Request, view: APIView) -> str:
            return f"{self.field}-{request.query_params.get(self.field)}"

    mail, phone = (type(name, (Field,), {"field": name, **same}) for name in ("mail", "phone"))
    view = view_of(mail, phone)
    asked = [view(factory.get("/", {"mail": str(number), "phone": "same"})).status_code for number in range(3)]
    assert asked == [200, 200, 429]
    asked = [view(factory.get("/", {"mail": "same", "phone": str(number)})).status_code for number in range(3)]
    assert asked == [200, 200, 429]


@pytest.mark.usefixtures("clock")
def test_throttles_of_one_scope_with_several_rates_are_all_obeyed() -> None:
    class Lax(AnonRateThrottle):
        rate = "5/day"

    class Strict(AnonRateThrottle):
        rate = "1/hour"

    for throttles in ((Lax, Strict), (Strict, Lax)):
        address = {"REMOTE_ADDR": f"203.0.113.{throttles.index(Lax)}"}
        assert statuses(view_of(*throttles), 2, **address) == [200, 429]


def test_a_view_called_twice_with_one_request_counts_twice(clock: Clock) -> None:
    class Rated(AnonRateThrottle):
        rate = "2/day"

    view, request = view_of(Rated), factory.get("/")
    assert [view(request).status_code for _ in range(4)] == [200, 200, 429, 429]
    clock.now_us += 86_400_000_000
    assert view(request).status_code == 200


def test_counts_are_exact_among_threads() -> None:
    class Rated(AnonRateThrottle):
        rate = "7/day"

    view = view_of(Rated)
    statuses(view_of(), 1)

    def ask(_number: int) -> int:
        try:
            return view(factory.get("/")).status_code
        finally:
            database.close()

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(ask, range(40))) == [200] * 7 + [429] * 33


def test_windows_slide(clock: Clock) -> None:
    class Rated(AnonRateThrottle):
        rate = "2/min"

    view = view_of(Rated)
    admitted = []
    for _second in range(121):
        admitted += [clock.seconds()] * (view(factory.get("/")).status_code == 200)
        clock.now_us += 1_000_000
    assert admitted == [0, 1, 60, 61, 120]


def test_many_are_counted_by_the_counter_and_few_each() -> None:
    class Rated(AnonRateThrottle):
        pass

    for rate, algorithm in (("10000/min", Algorithm.SLIDING_WINDOW_LOG), ("10001/min", "sliding_window_counter")):
        Rated.rate = rate
        request = factory.get("/")
        view_of(Rated)(request)
        assert request.ratelimit.results[0].limit.algorithm == algorithm
