"""What subclasses of REST framework's throttles override, and what they find on themselves: here as there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache as django_cache
from django.http import HttpRequest
from django.test import override_settings
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle as FrameworksThrottle
from rest_framework.views import APIView

from django_ratelimiter import limiter
from django_ratelimiter.throttling import AnonRateThrottle, UserRateThrottle

from .conftest import Clock
from .drf_views import View, factory, statuses, view_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.drf_views")]


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


def test_a_timer_of_ones_own_is_the_time() -> None:
    seconds = count(0, 20)

    class Timed(AnonRateThrottle):
        rate = "2/min"

        def timer(self) -> float:
            return next(seconds)

    responses = [view_of(Timed)(factory.get("/")) for _ in range(6)]
    assert [response.status_code for response in responses] == [200, 200, 429, 200, 200, 429]
    assert responses[2]["Retry-After"] == "20"


def test_a_throttle_that_does_all_itself_does_it_as_before() -> None:
    class Own(AnonRateThrottle):
        rate = "2/day"

        def allow_request(self, request: Request, view: APIView) -> bool:
            return FrameworksThrottle.allow_request(self, request, view)

    django_cache.clear()
    assert statuses(view_of(Own), 3) == [200, 200, 429]


def test_the_history_is_found_in_the_cache() -> None:
    """Where subclasses of the framework's throttles read it, such as for a header of their own."""
    left = []

    class Noting(AnonRateThrottle):
        rate = "2/day"

        def allow_request(self, request: Request, view: APIView) -> bool:
            allowed = super().allow_request(request, view)
            left.append(self.num_requests - len(self.cache.get(self.key, [])))
            self.cache.set("another", 7)
            return allowed and self.cache.get("another") == 7

    assert statuses(view_of(Noting), 3) == [200, 200, 429]
    assert left == [1, 0, 0]


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


def test_no_user_on_the_request() -> None:
    request = Request(HttpRequest())
    request.user = AnonymousUser()
    assert AnonRateThrottle().allow_request(request, View())
