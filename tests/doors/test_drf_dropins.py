"""The throttles that take the place of REST framework's own: what a project has for those holds for these."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, ClassVar

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User
from django.core.cache import cache as django_cache
from django.core.exceptions import ImproperlyConfigured
from django.db import connection as database
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import SimpleRateThrottle as FrameworksThrottle
from rest_framework.views import APIView

from django_ratelimiter import limiter
from django_ratelimiter.decision import NOTHING_TO_DECIDE
from django_ratelimiter.engine import Algorithm
from django_ratelimiter.rules import code
from django_ratelimiter.throttling import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle

from .conftest import Clock, MakeRule
from .urls import NameAuthentication

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

rates = override_settings(
    REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"anon": "1/day", "user": "2/day", "export": "3/day"}}
)


class View(APIView):
    authentication_classes: ClassVar = [NameAuthentication]

    def get(self, request: Request) -> Response:
        decision = getattr(request._request, "ratelimit", NOTHING_TO_DECIDE)
        return Response({"rules": [str(result.rule) for result in decision.results]})


class ByAnon(View):
    throttle_classes: ClassVar = [AnonRateThrottle]


class ByUser(View):
    throttle_classes: ClassVar = [UserRateThrottle]


class Export(View):
    throttle_classes: ClassVar = [ScopedRateThrottle]
    throttle_scope = "export"


class Unscoped(View):
    throttle_classes: ClassVar = [ScopedRateThrottle]


urlpatterns = [
    path("anon/", ByAnon.as_view()),
    path("user/", ByUser.as_view()),
    path("export/", Export.as_view()),
    path("unscoped/", Unscoped.as_view()),
]

factory = APIRequestFactory()


def view_of(*throttles: type, **attributes: Any) -> Callable[[HttpRequest], HttpResponse]:
    """A view with these throttles."""
    view: Any = type("Throttled", (View,), {"throttle_classes": throttles, **attributes}).as_view()
    return view  # type: ignore[no-any-return]


def statuses(view: Callable[[HttpRequest], HttpResponse], times: int, **options: Any) -> list[int]:
    return [view(factory.get("/", **options)).status_code for _ in range(times)]


def gets(client: Client, url: str, times: int, **headers: str) -> list[int]:
    return [client.get(url, headers=headers).status_code for _ in range(times)]


@pytest.fixture
def people() -> None:
    for name in ("ann", "bob"):
        User.objects.create(username=name)


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
def test_a_scope_has_the_rate_of_its_name_and_a_view_without_one_has_no_limit(client: Client) -> None:
    assert gets(client, "/export/", 4) == [200, 200, 200, 429]
    assert gets(client, "/unscoped/", 9) == [200] * 9


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
    class Rated(AnonRateThrottle):
        rate = "1/day"

    class Table(AnonRateThrottle):
        THROTTLE_RATES: ClassVar = {"anon": "4/day"}

    assert statuses(view_of(Rated), 2) == [200, 429]
    assert statuses(view_of(Table), 4) == [200, 200, 200, 429]  # one scope and one key: one count


@rates
def test_the_client_is_told_as_by_any_rule(client: Client) -> None:
    admitted = client.get("/anon/")
    assert admitted["RateLimit-Policy"] == '"code:anon";q=1;w=86400'
    refused = client.get("/anon/")
    assert refused.status_code == 429
    assert 86_390 < int(refused["Retry-After"]) <= 86_400
    assert refused["RateLimit"].startswith('"code:anon";r=0;t=')
    assert refused["Cache-Control"] == "no-store"


@pytest.mark.usefixtures("clock")
def test_of_several_throttles_a_refusal_spends_nothing_of_the_earlier() -> None:
    class Ample(AnonRateThrottle):
        scope, rate = "ample", "5/day"

    class Scarce(AnonRateThrottle):
        scope, rate = "scarce", "1/day"

    assert statuses(view_of(Ample, Scarce), 9) == [200] + [429] * 8
    assert statuses(view_of(Ample), 5) == [200] * 4 + [429]


def test_a_refused_client_waits_for_the_last_throttle(clock: Clock) -> None:
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


def test_a_timer_of_ones_own_is_the_time() -> None:
    seconds = count(0, 20)

    class Timed(AnonRateThrottle):
        rate = "2/min"

        def timer(self) -> float:
            return next(seconds)

    responses = [view_of(Timed)(factory.get("/")) for _ in range(6)]
    assert [response.status_code for response in responses] == [200, 200, 429, 200, 200, 429]
    assert responses[2]["Retry-After"] == "20"


def test_many_are_counted_by_the_counter_and_few_each() -> None:
    class Rated(AnonRateThrottle):
        pass

    for rate, algorithm in (("10000/min", Algorithm.SLIDING_WINDOW_LOG), ("10001/min", "sliding_window_counter")):
        Rated.rate = rate
        request = factory.get("/")
        view_of(Rated)(request)
        assert request.ratelimit.results[0].limit.algorithm == algorithm


def test_a_rate_of_zero_refuses_everybody(client: Client) -> None:
    class Rated(AnonRateThrottle):
        rate = "0/day"

    answer = view_of(Rated)(factory.get("/"))
    assert (answer.status_code, answer.headers.get("Retry-After")) == (429, None)


@pytest.mark.parametrize(
    ("rate", "parsed"),
    [
        ("10/min", (10, 60)),
        ("5/h", (5, 3_600)),
        ("1/day", (1, 86_400)),
        ("3/s", (3, 1)),
        ("3/sec", (3, 1)),
        ("3/seconds", (3, 1)),
        ("100/hour", (100, 3_600)),
        ("1_000/m", (1_000, 60)),
        ("0/minute", (0, 60)),
        (None, (None, None)),
    ],
)
def test_rates_mean_what_they_mean_to_the_framework(rate: str | None, parsed: tuple[int | None, int | None]) -> None:
    throttle = AnonRateThrottle()
    assert throttle.parse_rate(rate) == FrameworksThrottle.parse_rate(throttle, rate) == parsed


@pytest.mark.parametrize(
    "rate", ["10/month", "10/decade", "5/ms", "10", "ten/min", "10/min garbage", "10/", "/min", ""]
)
def test_what_would_be_misread_is_refused(rate: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="is not a throttle rate"):
        AnonRateThrottle().parse_rate(rate)


def test_a_period_of_ones_own() -> None:
    class Rated(AnonRateThrottle):
        rate = "1/fortnight"

        def parse_rate(self, rate: str | None) -> tuple[int, int]:
            return 1, 14 * 86_400

    request = factory.get("/")
    view_of(Rated)(request)
    assert request.ratelimit.results[0].limit.window == 14 * 86_400


def test_what_cannot_be_enforced_says_why() -> None:
    class Rated(AnonRateThrottle):
        rate = "99999999999999999999/day"

    with pytest.raises(ImproperlyConfigured, match=r"Rated: '9+/day' cannot be enforced: quota"):
        statuses(view_of(Rated), 1)


FORWARDED = {"HTTP_X_FORWARDED_FOR": "198.51.100.1, 203.0.113.7, 10.0.0.2", "REMOTE_ADDR": "10.0.0.1"}


@pytest.mark.parametrize(
    ("frameworks", "ours", "expected"),
    [
        ({}, {}, "198.51.100.1,203.0.113.7,10.0.0.2"),
        ({"NUM_PROXIES": 0}, {}, "10.0.0.1"),
        ({"NUM_PROXIES": 2}, {}, "203.0.113.7"),
        ({}, {"TRUSTED_PROXIES": ["10.0.0.0/8"]}, "203.0.113.7"),
        ({"NUM_PROXIES": 1}, {"TRUSTED_PROXIES": ["10.0.0.0/8"]}, "10.0.0.2"),
    ],
)
def test_the_client_behind_proxies(frameworks: dict[str, Any], ours: dict[str, Any], expected: str) -> None:
    with override_settings(REST_FRAMEWORK=frameworks, RATELIMITER=ours):
        assert AnonRateThrottle().get_ident(Request(factory.get("/", **FORWARDED))) == expected


def test_hooks_are_called_and_may_answer(clock: Clock) -> None:
    calls: list[Any] = []

    class Noting(AnonRateThrottle):
        rate = "1/day"

        def throttle_success(self) -> bool:
            calls.append(("success", self.key, len(self.history), self.num_requests, self.duration))
            return super().throttle_success()

        def throttle_failure(self) -> bool:
            calls.append(("failure", self.wait()))
            return True

    request = factory.get("/")
    assert statuses(view_of(Noting), 1) == [200]
    assert view_of(Noting)(request).status_code == 200
    assert calls == [("success", "throttle_anon_127.0.0.1", 1, 1, 86_400), ("failure", 86_400)]
    assert limiter.check(request).allowed


def test_a_rate_chosen_for_the_request() -> None:
    class Chosen(UserRateThrottle):
        rate = "5/day"

        def allow_request(self, request: Request, view: APIView) -> bool:
            self.num_requests, self.duration = self.parse_rate("1/hour")
            return super().allow_request(request, view)

    assert statuses(view_of(Chosen), 2) == [200, 429]


def test_a_throttle_that_does_all_itself_does_it_as_before() -> None:
    class Own(AnonRateThrottle):
        rate = "2/day"

        def allow_request(self, request: Request, view: APIView) -> bool:
            return FrameworksThrottle.allow_request(self, request, view)

    django_cache.clear()
    assert statuses(view_of(Own), 3) == [200, 200, 429]


def test_an_instance_may_be_shared(clock: Clock) -> None:
    class Rated(UserRateThrottle):
        rate = "1/day"

    shared = Rated()
    view = view_of(get_throttles=lambda self: [shared])
    other = {"REMOTE_ADDR": "203.0.113.9"}
    assert statuses(view, 2) == [200, 429]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(statuses, view, 2, **other).result() == [200, 429]
        assert shared.key == "throttle_user_127.0.0.1"
        clock.now_us += 80_000_000_000
        assert pool.submit(shared.wait).result() == 86_400
    assert statuses(view, 1, **other) == [429]
    assert shared.wait() == 6_400


@rates
def test_rules_of_the_rule_set_are_decided_in_the_same_call(
    client: Client, make_rule: MakeRule, redis_client: redis.Redis, people: None
) -> None:
    make_rule("per-user", partition_by=["user"])
    make_rule("exports", scope="export")
    client.get("/export/", headers={"X-Name": "bob"})
    redis_client.config_resetstat()
    assert client.get("/export/", headers={"X-Name": "ann"}).json() == {"rules": ["code:export", "exports", "per-user"]}
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


@rates
@pytest.mark.usefixtures("people")
@pytest.mark.parametrize("url", ["/anon/", "/unscoped/"])
def test_rules_by_user_are_met_where_the_throttle_has_no_say(client: Client, make_rule: MakeRule, url: str) -> None:
    make_rule("per-user", quota=1, partition_by=["user"])
    assert gets(client, url, 2, X_Name="ann") == [200, 429]


@rates
def test_a_refusal_gives_back_what_the_middleware_spent(client: Client, make_rule: MakeRule) -> None:
    make_rule("per-ip", quota=5, partition_by=["ip"])
    assert gets(client, "/anon/", 4) == [200, 429, 429, 429]
    assert client.get("/anon/")["RateLimit"].startswith('"per-ip";r=4;')


@rates
def test_an_outage_leaves_a_share_of_the_rate(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_ratelimiter.exceptions import EngineUnavailable

    class Gone:
        def check(self, *_args: Any, **_options: Any) -> None:
            raise EngineUnavailable("gone")

    gets(client, "/unscoped/", 1)
    monkeypatch.setattr("django_ratelimiter.connection._engine", Gone())
    assert gets(client, "/export/", 2) == [200, 429]


@rates
def test_the_rule_is_known_once_it_is_met(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_registered", {})
    client.get("/anon/")
    [rule] = code.registered()
    assert (rule.slug, rule.partition_by, rule.limits[None][0].limit.quota) == ("code:anon", ("anon",), 1)


def test_slugs_fit_where_slugs_of_rules_do() -> None:
    assert code.slug_of("shop.views.order") == "code:shop.views.order"
    long = [code.slug_of(f"{'package.' * number}view") for number in (9, 10)]
    assert len(set(long)) == 2
    assert all(len(slug) == 50 and slug.startswith("code:") for slug in long)
    assert code.slug_of("f.<locals>.view") != code.slug_of("f.-locals-.view")


def test_no_user_on_the_request() -> None:
    request = Request(HttpRequest())
    request.user = AnonymousUser()
    assert AnonRateThrottle().allow_request(request, View())
