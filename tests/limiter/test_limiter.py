"""One decision for one request: all rules in one call, and what decides while the engine or the database is away."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest
from django.test import RequestFactory, override_settings
from django.utils.functional import SimpleLazyObject

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import EngineUnavailable
from django_ratelimiter.models import AccessEntry, Rule, Tier
from django_ratelimiter.rules import cache, tiers

from ..making import MakeRule, failing, in_another_process

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _forget_tiers() -> None:
    tiers.forget()


def ask(path: str = "/", user: User | None = None, **headers: str) -> HttpRequest:
    request = RequestFactory().get(path, headers=headers)
    if user:
        request.user = user
    return request


def outcomes(*requests: HttpRequest) -> list[bool]:
    return [limiter.check(request).allowed for request in requests]


def test_a_warm_request_with_three_rules_costs_one_call_and_no_query(
    make_rule: MakeRule, redis_client: redis.Redis, django_assert_num_queries: Any
) -> None:
    for slug in ("a", "b", "c"):
        make_rule(slug, quota=100, partition_by=["ip"])
    limiter.check(ask())
    redis_client.config_resetstat()
    with django_assert_num_queries(0):
        decision = limiter.check(ask())
    commands = redis_client.info("commandstats")
    assert len(decision.results) == 3
    assert commands["cmdstat_evalsha"]["calls"] == 1
    sent = {name for name in commands if name not in ("cmdstat_config|resetstat", "cmdstat_info")}
    script = "mget get set time hincrby hset sadd expire zincrby zcard"
    within_the_script = {"evalsha", *script.split()}
    assert sent <= {f"cmdstat_{name}" for name in within_the_script}


def test_a_request_is_decided_once_by_each_rule(make_rule: MakeRule) -> None:
    make_rule("all", quota=2)
    request = ask()
    assert limiter.check(request) == limiter.check(request)
    assert request.ratelimit.results[0].verdict.remaining == 1  # type: ignore[attr-defined]


def test_a_later_entry_point_meets_only_the_rules_of_its_scope_and_gives_back_what_went_before(
    make_rule: MakeRule,
) -> None:
    make_rule("all", quota=5)
    make_rule("mail", quota=2, scope="mail")
    request = ask()
    assert limiter.check(request).allowed
    rejected = limiter.check(request, scope="mail", cost=3)
    assert [str(result.rule) for result in rejected.rejected_by] == ["mail"]
    assert [result.verdict.remaining for result in rejected.results if result.verdict] == [5, 2]
    assert limiter.check(ask()).results[0].verdict.remaining == 4  # type: ignore[union-attr]


def test_a_user_of_the_authentications_own_kind_has_the_default_tier(make_rule: MakeRule) -> None:
    tier = Tier.objects.create(slug="free", name="Free", default_for="authenticated")
    make_rule("tiered", tier=tier, partition_by=["user"])
    stranger = User(pk="0b0e2c3a-uuid")
    assert [str(result.tier) for result in limiter.check(ask(user=stranger)).results] == ["free"]


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_warm_limiter_decides_while_the_database_is_away(make_rule: MakeRule, error: type[Exception]) -> None:
    make_rule("per-ip", quota=1, partition_by=["ip"])
    ann = User.objects.create(username="ann")
    limiter.check(ask())
    unread = ask()
    unread.user = SimpleLazyObject(lambda: User.objects.get(pk=ann.pk))  # as the authentication middleware does
    with connection.execute_wrapper(failing(error("away"))):
        assert outcomes(unread, ask(user=ann), ask(X_API_Key="key")) == [False, False, False]


def test_what_was_spent_in_memory_is_not_refunded_in_redis(
    make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rule("all", quota=4, algorithm="fixed_window")
    make_rule("mail", quota=1, scope="mail")
    assert outcomes(ask(), ask(), ask(), ask(), ask()) == [True] * 4 + [False]
    request = ask()
    with monkeypatch.context() as patched:
        patched.setattr("django_ratelimiter.backend._engine", Broken())
        assert limiter.check(request).degraded
    assert not limiter.check(request, scope="mail", cost=2).allowed
    assert outcomes(ask()) == [False]


def test_a_request_that_meets_no_rule_learns_of_a_new_one(make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1000.0, 0.4)
    monkeypatch.setattr(cache.time, "monotonic", lambda: next(clock))
    make_rule("elsewhere", path="/elsewhere/", path_kind="exact")
    assert limiter.check(ask()).results == ()
    Rule.objects.update(path="/")  # as another process would: this one is not told
    with in_another_process():
        cache.invalidate()
    cache._state.outdated = False
    met = [bool(limiter.check(ask()).results) for _ in range(4)]
    assert met[-1]


class Broken:
    """An engine that is out of reach."""

    def check(self, *args: Any, **kwargs: Any) -> None:
        raise EngineUnavailable("out of reach")

    peek = refund = release = publish = take_usage = check


def test_a_closed_rule_keeps_a_local_one_from_spending(make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rule("counted-here", quota=2, failure_policy="local")
    closed = make_rule("guarded", failure_policy="closed")
    with monkeypatch.context() as patched:
        patched.setattr("django_ratelimiter.backend._engine", Broken())
        assert outcomes(ask(), ask()) == [False, False]
        closed.delete()
        assert outcomes(ask(), ask()) == [True, False]
    assert get_engine().peek([]) == []


def test_while_the_engine_is_away_rules_are_read_again_at_their_maximum_age(
    make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = make_rule("aged", failure_policy="open")
    limiter.check(ask())
    now = cache.time.monotonic()
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())
    Rule.objects.filter(pk=rule.pk).update(failure_policy="closed")
    with cache.editing():
        pass
    cache._state.outdated = False  # another process made that edit
    assert outcomes(ask()) == [True]
    monkeypatch.setattr(cache.time, "monotonic", lambda: now + 11)
    assert outcomes(ask()) == [False]


def fail(_request: HttpRequest) -> str:
    raise OperationalError("gone")


class BrokenSession:
    def keys(self) -> list[str]:
        raise OperationalError("gone")


@pytest.mark.parametrize("name", ["user", "session", "tenant"])
@pytest.mark.parametrize(("missing", "decided"), [("skip", 0), ("ip", 1), ("deny", 1)])
def test_a_decision_without_a_value_that_a_store_failed_to_give_is_degraded(
    make_rule: MakeRule, check: Callable[..., Decision], name: str, missing: str, decided: int
) -> None:
    make_rule("by-value", partition_by=[name], missing_partition=missing)
    own = {**settings.RATELIMITER, "IDENTITIES": {"tenant": f"{__name__}.fail"}}
    with override_settings(RATELIMITER=own):
        request = ask()
        request.user, request.session = SimpleLazyObject(lambda: fail(request)), BrokenSession()  # type: ignore[assignment]
        decision = check(request)
        assert (decision.degraded, len(decision.results), decision.allowed) == (True, decided, missing != "deny")
        request = ask()
        assert name == "tenant" or not check(request).degraded  # it has no user and no session


def test_an_access_entry_still_denies_if_a_store_fails(check: Callable[..., Decision]) -> None:
    AccessEntry.objects.create(action="deny", kind="ip", value="127.0.0.1")
    AccessEntry.objects.create(action="deny", kind="user", value="7")
    request = ask()
    request.user = SimpleLazyObject(lambda: fail(request))  # type: ignore[assignment]
    assert not check(request).allowed
