"""The history of a throttle's key: which throttles share it, and what subclasses find of it. Compared with DRF."""

from __future__ import annotations

from typing import Any

import pytest
import rest_framework.throttling
from django.core.cache import cache as django_cache
from django.core.exceptions import ImproperlyConfigured
from rest_framework.request import Request
from rest_framework.views import APIView

from django_ratelimiter import backend, throttling
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.throttling import AnonRateThrottle

from ..making import Clock
from .drf_views import statuses, view_of

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


@pytest.mark.parametrize(
    "change", [lambda self: self.cache.set(self.key, [], 60), lambda self: self.cache.delete(self.key)]
)
def test_a_change_of_the_history_that_would_be_lost_is_an_error(change: Any) -> None:
    class Forgetting(AnonRateThrottle):
        rate = "2/day"

        def throttle_success(self) -> bool:
            change(self)
            return True

    with pytest.raises(ImproperlyConfigured, match=r"Forgetting: self\.cache cannot change the history of self\.key"):
        statuses(view_of(Forgetting), 1)


def test_a_rejection_cannot_be_recorded() -> None:
    class Counting(AnonRateThrottle):
        rate = "0/day"

        def throttle_failure(self) -> bool:
            self.cache.set(self.key, [self.now, *self.history], self.duration)
            return False

    with pytest.raises(ImproperlyConfigured, match="no rejected one"):
        statuses(view_of(Counting), 1)
