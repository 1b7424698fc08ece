"""Decisions without Redis are counted in the process, and marked as such."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.test import RequestFactory

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine, usage_buffer
from django_ratelimiter.engine.usage import counts_of
from django_ratelimiter.rules import cache

from ..counting import sums_of
from ..making import MakeRule
from .test_limiter import Broken

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def _outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())


def counted() -> dict[str, tuple[int, int, int, int]]:
    """Allowed, rejected, rejected by a shadow rule, and degraded, by the rule's slug."""
    held = usage_buffer.lease()
    if held is None:
        return {}
    usage_buffer.acknowledge(held)
    minutes = {minute for minute, *_ in held.entries}
    assert all(abs(minute - time.time() / 60) < 2 for minute in minutes)
    totals: dict[str, tuple[int, int, int, int]] = {}
    for minute, field, calls in held.entries:
        for count in counts_of(minute, {field: calls}):
            slug = count.label.partition("|")[0]
            figures = (count.allowed, count.rejected, count.shadow_rejected, count.degraded)
            totals[slug] = tuple(map(sum, zip(totals.get(slug, (0, 0, 0, 0)), figures, strict=True)))  # type: ignore[assignment]
    return totals


def ask(times: int) -> None:
    cache.current_rules()
    for _ in range(times):
        limiter.check(RequestFactory().get("/"))


def cut_off(engine: Any) -> Any:
    """Have the engine not asked any more; return what is to be closed."""
    breaker = engine.server_of(0).breaker
    while not breaker.is_open:
        breaker.fail(OSError("gone"))
    breaker.claim_probe = lambda: False  # else a probe could close it meanwhile, as the server is there
    return breaker


@pytest.mark.usefixtures("_outage")
@pytest.mark.parametrize(
    ("policy", "mode", "counts"),
    [
        ("local", "enforce", (2, 3, 0, 5)),
        ("local", "shadow", (2, 0, 3, 5)),
        ("open", "enforce", (5, 0, 0, 5)),
        ("closed", "enforce", (0, 5, 0, 5)),
        ("closed", "shadow", (0, 0, 5, 5)),
    ],
)
def test_by_policy(make_rule: MakeRule, policy: str, mode: str, counts: tuple[int, int, int, int]) -> None:
    make_rule("all", quota=4, failure_policy=policy, mode=mode)
    ask(5)
    assert counted() == {"all": counts}
    decision = limiter.check(RequestFactory().get("/"))
    assert (decision.degraded, decision.unavailable) == (True, (policy, mode) == ("closed", "enforce"))


@pytest.mark.usefixtures("_outage")
def test_each_rule_of_a_request_is_counted(make_rule: MakeRule) -> None:
    make_rule("narrow", quota=2, failure_policy="local")
    make_rule("wide", quota=100, failure_policy="local")
    make_rule("free", failure_policy="open")
    ask(3)
    assert counted() == {"narrow": (1, 2, 0, 3), "wide": (1, 0, 0, 3), "free": (1, 0, 0, 3)}


def test_nothing_is_while_redis_decides(make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    ask(2)
    assert counted() == {}


def test_the_next_call_takes_the_counts_along(make_rule: MakeRule) -> None:
    make_rule("all", quota=100, failure_policy="local")
    engine: Any = get_engine()
    ask(1)
    breaker = cut_off(engine)
    ask(2)
    breaker.close()
    ask(3)
    assert counted() == {}, "sent"
    assert sums_of(engine, "allowed", "degraded") == {"all": (6, 2)}


def test_the_list_of_rejections_is_told_of_those_without_redis(make_rule: MakeRule) -> None:
    make_rule("all", quota=100, failure_policy="closed")
    engine: Any = get_engine()
    ask(1)
    breaker = cut_off(engine)
    ask(2)
    breaker.close()
    assert engine.recent_rejections() == []
    ask(2)
    (rejection,) = engine.recent_rejections()
    assert (rejection.rule, rejection.times, rejection.is_estimate) == ("all", 2, False)
    assert abs(rejection.at_us / 1_000_000 - time.time()) < 60
