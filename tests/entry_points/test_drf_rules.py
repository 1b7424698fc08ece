"""Throttles in the place of REST framework's own, and the rules of the rule set: one decision."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.core.cache import cache as django_cache
from django.test import Client
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle as FrameworksThrottle
from rest_framework.views import APIView

from django_ratelimiter.rules import inline
from django_ratelimiter.throttling import AnonRateThrottle, UserRateThrottle

from .conftest import MakeRule
from .drf_views import factory, gets, rates, view_of

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


class Lets(AnonRateThrottle):
    rate = "1/day"

    def allow_request(self, request: Request, view: APIView) -> bool:
        return True


class LetsAsMixin:
    def allow_request(self, request: Request, view: APIView) -> bool:
        return True


class LetsByMixin(LetsAsMixin, UserRateThrottle):
    rate = "1/day"


class Counts(AnonRateThrottle):
    rate = "9/day"

    def allow_request(self, request: Request, view: APIView) -> bool:
        return FrameworksThrottle.allow_request(self, request, view)


@pytest.mark.usefixtures("clock", "people")
@pytest.mark.parametrize("throttles", [(Lets,), (LetsByMixin,), (Counts,), (Lets, AnonRateThrottle), (Lets, Counts)])
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
    class Rejects(AnonRateThrottle):
        rate = "1/day"

        def allow_request(self, request: Request, view: APIView) -> bool:
            return False

        def wait(self) -> None:
            return None

    make_rule("per-user", quota=2, partition_by=["user"])
    request = factory.get("/", HTTP_X_NAME="ann")
    assert view_of(Rejects)(request).status_code == 429
    assert not hasattr(request, "ratelimit")


@rates
def test_a_rejection_gives_back_what_the_middleware_spent(client: Client, make_rule: MakeRule) -> None:
    make_rule("per-ip", quota=5, partition_by=["ip"])
    assert gets(client, "/anon/", 4) == [200, 429, 429, 429]
    assert client.get("/anon/")["RateLimit"].startswith('"per-ip";r=4,')


@rates
def test_an_outage_leaves_a_share_of_the_rate(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_ratelimiter.exceptions import EngineUnavailable

    class Gone:
        def check(self, *_args: Any, **_options: Any) -> None:
            raise EngineUnavailable("gone")

    gets(client, "/unscoped/", 1)
    monkeypatch.setattr("django_ratelimiter.backend._engine", Gone())
    assert gets(client, "/export/", 2) == [200, 429]


@rates
def test_the_rule_is_known_once_it_is_met(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})
    client.get("/anon/")
    [rule] = inline.registered()
    assert (rule.slug, rule.partition_by, rule.limits[None][0].limit.quota) == ("code:anon", ("caller",), 1)
