"""The throttles in place of REST framework's own: what they count, and the history of a key. Compared with DRF."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import rest_framework.throttling
from django.contrib.auth.models import User
from django.core.cache import cache as django_cache
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import force_authenticate
from rest_framework.throttling import SimpleRateThrottle as FrameworksThrottle
from rest_framework.views import APIView

from django_ratelimiter import backend, throttling
from django_ratelimiter.engine import Algorithm, MemoryEngine
from django_ratelimiter.rules import inline
from django_ratelimiter.throttling import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle

from ..making import Clock
from .drf_views import View, factory, rated, rates, statuses, view_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.drf_views")]


@pytest.fixture(params=[throttling, rest_framework.throttling], ids=["ours", "frameworks"])
def classes(request: pytest.FixtureRequest, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of our classes, and then that of the framework's, which must do the same."""
    django_cache.clear()
    monkeypatch.setattr(rest_framework.throttling.SimpleRateThrottle, "timer", lambda _self: clock.seconds())
    return request.param


def test_throttles_with_one_key_have_one_history(classes: Any) -> None:
    """Whatever their classes, scopes and rates are."""

    class Tenant(classes.SimpleRateThrottle):  # type: ignore[name-defined]
        rate = "4/day"

        def get_cache_key(self, request: Request, view: APIView) -> str:
            return "tenant"

    class Other(classes.SimpleRateThrottle):  # type: ignore[name-defined]
        scope, rate = "other", "6/day"

        def get_cache_key(self, request: Request, view: APIView) -> str:
            return "tenant"

    third = type("Third", (Other,), {"scope": "third", "rate": "5/day"})
    assert [statuses(view_of(each), 7).count(200) for each in (Tenant, Other, third)] == [4, 2, 0]


def test_throttles_of_one_scope_have_one_history_if_their_windows_are_equal() -> None:
    """With other windows, each is as strict as it says. The framework has one history, and forgets what is older than
    the shorter window: an hour later its day begins anew.
    """

    def passed(module: Any, clock: Clock) -> list[int]:
        daily, hourly = (type("T", (module.AnonRateThrottle,), {"rate": rate}) for rate in ("4/day", "3/hour"))
        found = [statuses(view_of(daily), 3).count(200), statuses(view_of(hourly), 4).count(200)]
        clock.now_us += 3_600_000_000
        return [*found, statuses(view_of(hourly), 1).count(200), statuses(view_of(daily), 5).count(200)]

    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(backend, "_engine", MemoryEngine(clock))
        patch.setattr(rest_framework.throttling.SimpleRateThrottle, "timer", lambda _self: clock.seconds())
        django_cache.clear()
        assert passed(throttling, clock) == [3, 3, 1, 1]
        assert passed(rest_framework.throttling, clock) == [3, 0, 1, 3]


def test_throttles_of_one_view_with_one_key_count_a_request_once(classes: Any) -> None:
    """In the framework each of them counts it."""
    lax, strict = (type(rate, (classes.AnonRateThrottle,), {"rate": rate}) for rate in ("6/day", "4/day"))
    expected = 4 if classes is throttling else 2
    assert statuses(view_of(lax, strict), 7).count(200) == expected
    address = {"REMOTE_ADDR": "203.0.113.9"}
    assert statuses(view_of(strict, lax), 7, **address).count(200) == expected


def test_the_history_is_found_in_the_cache_before_and_after_the_decision(classes: Any, clock: Clock) -> None:
    """Where subclasses read it, such as for a header of their own. The newest time is right, and when a request is
    rejected, the oldest too.
    """
    seen: list[Any] = []

    class Noting(classes.AnonRateThrottle):  # type: ignore[name-defined]
        rate = "3/min"

        def allow_request(self, request: Request, view: APIView) -> bool:
            self.key = self.get_cache_key(request, view)
            before = len(self.cache.get(self.key, []))
            allowed = super().allow_request(request, view)
            history = self.cache.get(self.key, [])
            seen.append((before, [round(self.timer() - each) for each in (history[0], history[-1])], len(history)))
            self.cache.set("another", 7)
            return allowed and self.cache.get("another") == 7

    for _ in range(4):
        statuses(view_of(Noting), 1)
        clock.now_us += 10_000_000
    ages = [[0, 0], [0, 10], [0, 20], [10, 30]]
    if classes is throttling:
        ages[1:3] = [0, 0], [0, 0]
    assert seen == [(before, age, min(before + 1, 3)) for before, age in enumerate(ages)]


def test_a_success_may_be_recorded_as_the_framework_does(classes: Any) -> None:
    class Copied(classes.AnonRateThrottle):  # type: ignore[name-defined]
        rate = "2/day"

        def throttle_success(self) -> bool:
            self.history.insert(0, self.now)
            self.cache.set(self.key, self.history, self.duration)
            return True

    assert statuses(view_of(Copied), 3) == [200, 200, 429]


def test_subclass_says_how_often_a_request_counts(classes: Any, clock: Clock) -> None:
    """Only posts, then each twice, then only what the view records afterwards: by this instance, then by another."""

    class Own(classes.AnonRateThrottle):  # type: ignore[name-defined]
        rate, times = "4/min", 1

        def get_cache_key(self, request: Request, view: APIView) -> Any:
            self.method = request.method
            return super().get_cache_key(request, view)

        def throttle_success(self) -> bool:
            assert len(self.history) < 4
            for _ in range(self.times if self.method == "GET" else 0):
                super().throttle_success()
            return True

        def record(self, request: Request) -> None:
            super().throttle_success()

    class Later(Own):
        times = 0

        def allow_request(self, request: Request, view: APIView) -> bool:
            return request.path != "/" or super().allow_request(request, view)

    class Another(Later):
        def record(self, request: Request) -> None:
            other = type(self)()
            other.key, other.now = other.get_cache_key(request, None), other.timer()
            other.history = other.cache.get(other.key, [])
            other.cache.set(other.key, [other.now, *other.history], other.duration)

    class Failing(View):
        def get(self, request: Request) -> Response:
            [throttle] = self.used
            throttle.record(request)
            return Response()

        def get_throttles(self) -> Any:
            self.used = super().get_throttles()
            return self.used

    for number, own in enumerate((Own, type("Twice", (Own,), {"times": 2}))):
        view, address = view_of(own), {"REMOTE_ADDR": f"203.0.113.{number}"}
        others = [view(factory.options("/", **address)).status_code for _ in range(9)]
        assert others == [200] * 9
        assert statuses(view, 5, **address).count(200) == 4 // own.times
        clock.now_us += 60_000_000
        assert statuses(view, 1, **address) == [200]
    for number, later in enumerate((Later, Another), start=3):
        view, address = view_of(later), {"REMOTE_ADDR": f"203.0.113.{number}"}
        assert statuses(view, 9, **address) == [200] * 9
        failing = Failing.as_view(throttle_classes=[later])
        assert statuses(failing, 6, **address).count(200) == 4
        assert statuses(view, 1, **address) == [429]


def test_rejection_counts_if_a_subclass_records_it(classes: Any, clock: Clock) -> None:
    class Penal(classes.AnonRateThrottle):  # type: ignore[name-defined]
        rate = "2/min"

        def throttle_failure(self) -> bool:
            self.history.insert(0, self.now)
            self.cache.set(self.key, self.history, self.duration)
            return False

    view, passed = view_of(Penal), []
    for _ in range(12):
        passed += statuses(view, 1)
        clock.now_us += 20_000_000
    assert passed == [200, 200, *[429] * 10]
    clock.now_us += 60_000_000
    assert statuses(view, 1) == [200]


@pytest.mark.parametrize(
    "change",
    [
        lambda self: self.cache.set(self.key, self.history[1:], 60),
        lambda self: self.cache.delete(self.key),
        lambda self: self.cache.set_many({"another": 1, self.key: self.history}, 60),
        lambda self: self.cache.delete_many(["another", self.key]),
        lambda self: self.cache.get_or_set(key=self.key, default=[]),
    ],
)
def test_change_of_the_history_that_would_be_lost_is_an_error(change: Any) -> None:
    class Forgetting(AnonRateThrottle):
        rate = "2/day"

        def throttle_success(self) -> bool:
            super().throttle_success()
            self.cache.touch("another")
            change(self)
            return True

    with pytest.raises(ImproperlyConfigured, match=r"Forgetting: self\.cache cannot "):
        statuses(view_of(Forgetting), 1)


def test_cache_of_a_throttle_is_refused_by_name() -> None:
    mixin = type("Mixin", (), {"cache": django_cache})
    with pytest.raises(ImproperlyConfigured, match=r"Elsewhere\.cache: .* RATELIMITER\['CACHE_ALIAS'\]"):
        type("Elsewhere", (mixin, AnonRateThrottle), {})


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
