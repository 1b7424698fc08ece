"""The throttles that take the place of REST framework's own count as those do, but exactly, and together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import connection as database
from django.test import Client, override_settings
from rest_framework.request import Request
from rest_framework.test import force_authenticate
from rest_framework.throttling import SimpleRateThrottle as FrameworksThrottle
from rest_framework.views import APIView

from django_ratelimiter.engine import Algorithm
from django_ratelimiter.rules import inline
from django_ratelimiter.throttling import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle

from ..making import Clock
from .drf_views import factory, gets, rated, rates, statuses, view_of

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


@pytest.mark.usefixtures("clock")
def test_of_several_throttles_a_rejection_spends_nothing_of_the_earlier() -> None:
    ample, scarce = rated("5/day", scope="ample"), rated("1/day", scope="scarce")
    assert statuses(view_of(ample, scarce), 9) == [200] + [429] * 8
    assert statuses(view_of(ample), 5) == [200] * 4 + [429]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("same", [{"scope": "login", "rate": "2/day"}, {"scope": None, "rate": "2/day"}])
def test_throttles_of_one_view_that_count_by_other_keys_are_all_obeyed(same: dict[str, str]) -> None:
    class Field(SimpleRateThrottle):
        field = ""

        def get_cache_key(self, request: Request, view: APIView) -> str:
            return f"{self.field}-{request.query_params.get(self.field)}"

    mail, phone = (type(name, (Field,), {"field": name, **same}) for name in ("mail", "phone"))
    view = view_of(mail, phone)
    for same_field, other in (("phone", "mail"), ("mail", "phone")):
        requests = [factory.get("/", {other: str(number), same_field: "same"}) for number in range(3)]
        assert [view(request).status_code for request in requests] == [200, 200, 429]


@pytest.mark.usefixtures("clock")
def test_throttles_of_one_scope_with_several_rates_are_all_obeyed() -> None:
    throttles = [rated("5/day"), rated("1/hour")]
    for number in (1, 2):
        assert statuses(view_of(*throttles[::-1]), 2, REMOTE_ADDR=f"203.0.113.{number}") == [200, 429]
        throttles.reverse()


def test_a_view_called_twice_with_one_request_counts_twice(clock: Clock) -> None:
    view, request = view_of(rated("2/day")), factory.get("/")
    assert [view(request).status_code for _ in range(4)] == [200, 200, 429, 429]
    clock.now_us += 86_400_000_000
    assert view(request).status_code == 200


def test_counts_are_exact_among_threads() -> None:
    view = view_of(rated("7/day"))
    statuses(view_of(), 1)

    def ask(_number: int) -> int:
        try:
            return view(factory.get("/")).status_code
        finally:
            database.close()

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(ask, range(40))) == [200] * 7 + [429] * 33


def test_many_are_counted_by_the_counter_and_few_each() -> None:
    for rate, algorithm in (("10000/min", Algorithm.SLIDING_WINDOW_LOG), ("10001/min", "sliding_window_counter")):
        request = factory.get("/")
        view_of(rated(rate))(request)
        assert request.ratelimit.results[0].limit.algorithm == algorithm


def test_rates_are_those_of_the_moment() -> None:
    view = view_of(AnonRateThrottle)
    assert statuses(view, 3) == [200] * 3
    with rates:
        assert statuses(view, 2) == [200, 429]
    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"anon": "3/day"}}):
        assert statuses(view, 3) == [200, 200, 429]
    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {}}), pytest.raises(ImproperlyConfigured):
        statuses(view, 1)


def test_rates_of_a_class_go_before_those_of_the_settings() -> None:
    class Table(AnonRateThrottle):
        THROTTLE_RATES: ClassVar = {"anon": "4/day"}

    assert statuses(view_of(rated("1/day")), 2) == [200, 429]
    assert statuses(view_of(Table), 4) == [200, 200, 200, 429]  # one scope and one key: one count


def test_a_rate_of_zero_rejects_everybody() -> None:
    answer = view_of(rated("0/day"))(factory.get("/"))
    assert (answer.status_code, answer.headers.get("Retry-After")) == (429, None)


RATES = {
    "10/min": (10, 60),
    "5/h": (5, 3_600),
    "1/day": (1, 86_400),
    "3/s": (3, 1),
    "3/sec": (3, 1),
    "3/seconds": (3, 1),
    "100/hour": (100, 3_600),
    "1_000/m": (1_000, 60),
    "0/minute": (0, 60),
    None: (None, None),
}


@pytest.mark.parametrize("parse", [AnonRateThrottle.parse_rate, FrameworksThrottle.parse_rate])
def test_rates_mean_what_they_mean_to_the_framework(parse: Any) -> None:
    assert {rate: parse(AnonRateThrottle(), rate) for rate in RATES} == RATES


@pytest.mark.parametrize(
    "rate", ["10/month", "10/decade", "5/ms", "10", "ten/min", "10/min garbage", "10/", "/min", "", 5]
)
def test_what_would_be_misread_is_rejected(rate: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="is not a throttle rate"):
        AnonRateThrottle().parse_rate(rate)


def test_a_period_of_ones_own() -> None:
    request = factory.get("/")
    view_of(rated("1/fortnight", parse_rate=lambda self, rate: (1, 14 * 86_400)))(request)
    assert request.ratelimit.results[0].limit.window == 14 * 86_400


def test_what_cannot_be_enforced_says_why() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"Rated: '9+/day' cannot be enforced: quota"):
        statuses(view_of(rated("99999999999999999999/day")), 1)


def test_slugs_fit_where_slugs_of_rules_do() -> None:
    assert inline.slug_of("shop.views.order") == "code:shop.views.order"
    long = [inline.slug_of(f"{'package.' * number}view") for number in (9, 10)]
    assert len(set(long)) == 2
    assert all(len(slug) == 50 and slug.startswith("code:") for slug in long)
    assert inline.slug_of("f.<locals>.view") != inline.slug_of("f.-locals-.view")
