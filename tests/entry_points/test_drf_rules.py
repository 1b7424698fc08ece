"""Throttles in the place of REST framework's own: one decision with the rules of the rule set, and their subclasses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
import redis
from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache as django_cache
from django.http import HttpRequest
from django.test import Client, override_settings
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle as FrameworksThrottle
from rest_framework.views import APIView

from django_ratelimiter import limiter
from django_ratelimiter.identity import digest
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.reset import counters_now
from django_ratelimiter.rules import inline
from django_ratelimiter.throttling import AnonRateThrottle, RuleThrottle, SimpleRateThrottle, UserRateThrottle

from ..making import Clock, MakeRule
from .drf_views import View, factory, gets, rated, rates, statuses, view_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.drf_views")]


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


def test_a_rule_with_the_scope_of_an_action_is_for_that_action(make_rule: MakeRule) -> None:
    make_rule("exports", scope="export", quota=1)
    actions = type("Actions", (View,), {"throttle_classes": (RuleThrottle,), "throttle_scope": None})
    assert statuses(actions.as_view(throttle_scope="export"), 2) == [200, 429]  # as routers make it of an action
    assert statuses(actions.as_view(), 1) == [200]


class Lets:
    def allow_request(self, request: Request, view: APIView) -> bool:
        return True


LETS = rated("1/day", allow_request=Lets.allow_request)
BY_MIXIN = type("ByMixin", (Lets, UserRateThrottle), {"rate": "1/day"})
COUNTS = rated("9/day", allow_request=FrameworksThrottle.allow_request)


@pytest.mark.usefixtures("clock", "people")
@pytest.mark.parametrize("throttles", [(LETS,), (BY_MIXIN,), (COUNTS,), (LETS, AnonRateThrottle), (LETS, COUNTS)])
def test_rules_are_met_where_a_subclass_answers_by_itself(make_rule: MakeRule, throttles: tuple[type, ...]) -> None:
    django_cache.clear()
    make_rule("per-user", quota=2, partition_by=["user"])
    view = view_of(*throttles)
    with rates:
        for name in ("ann", "bob"):
            answers = [view(factory.get("/", HTTP_X_NAME=name)) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
            assert int(answers[-1].headers["Retry-After"]) == 43_200  # a token bucket of 2 a day


@pytest.mark.usefixtures("clock", "people")
def test_what_a_subclass_rejects_by_itself_meets_no_rule(make_rule: MakeRule) -> None:
    rejecting = rated("1/day", allow_request=lambda self, request, view: False, wait=lambda self: None)
    make_rule("per-user", quota=2, partition_by=["user"])
    request = factory.get("/", HTTP_X_NAME="ann")
    assert view_of(rejecting)(request).status_code == 429
    assert not hasattr(request, "ratelimit")


@rates
def test_the_rule_is_known_once_it_is_met(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})
    client.get("/anon/")
    [rule] = inline.registered()
    assert (rule.slug, rule.partition_by, rule.limits[None][0].limit.quota) == ("code:anon", ("caller",), 1)


def test_throttles_that_share_a_counter_are_shown_with_their_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})
    for scope, rate in (("four", "4/day"), ("six", "6/day")):
        shared = rated(rate, SimpleRateThrottle, scope=scope, get_cache_key=lambda self, request, view: "tenant")
        assert statuses(view_of(shared), 1) == [200]
    four, six = counters_now(caller_of("digest", digest("tenant"))).counters
    assert four.charge.key == six.charge.key
    assert (four.left, six.left) == (2, 4)


# What subclasses override, and what they find on themselves


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
    assert calls == [("success", "throttle_anon_127.0.0.1", 0, 1, 86_400), ("failure", 86_400)]
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
    view = view_of(rated("2/min", timer=lambda self: next(seconds)))
    responses = [view(factory.get("/")) for _ in range(6)]
    assert [response.status_code for response in responses] == [200, 200, 429, 200, 200, 429]
    assert responses[2]["Retry-After"] == "20"


def test_a_throttle_that_does_all_itself_does_it_as_before() -> None:
    django_cache.clear()
    own = rated("2/day", allow_request=FrameworksThrottle.allow_request)
    assert statuses(view_of(own), 3) == [200, 200, 429]


def test_an_instance_may_be_shared(clock: Clock) -> None:
    shared = rated("1/day", UserRateThrottle)()
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
