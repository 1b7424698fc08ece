"""The history of a throttle's key: which throttles share it, and what subclasses find of it. Compared with DRF."""

from __future__ import annotations

from typing import Any

import pytest
import rest_framework.throttling
from django.core.cache import cache as django_cache
from django.core.exceptions import ImproperlyConfigured
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter import backend, throttling
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.throttling import AnonRateThrottle

from ..making import Clock
from .drf_views import View, factory, statuses, view_of

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
