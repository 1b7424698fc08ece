"""Rules written in code: decided, charged, refunded and counted as those of the rule set, in the same call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.http import HttpRequest
from django.test import RequestFactory

from django_ratelimiter import backend
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import Limit
from django_ratelimiter.engine.base import Engine
from django_ratelimiter.identity import digest
from django_ratelimiter.limiter.charges import InlineRule
from django_ratelimiter.rules.records import LimitRecord, RuleRecord

from ..counting import sums_of
from ..making import Clock, MakeRule

pytestmark = pytest.mark.django_db(transaction=True)


def coded(slug: str = "coded", quota: int = 2, value: str | None = "id:7", **fields: Any) -> InlineRule:
    """A rule of `quota` a day, with a value to split it by."""
    limits = {None: (LimitRecord(Limit(quota, 86_400, "token_bucket")),)}
    given: dict[str, Any] = {
        "slug": slug, "name": slug, "mode": "enforce", "methods": frozenset(), "path": "", "path_kind": "any",
        "view_name": "", "scope": "", "partition_by": ("id",), "missing_partition": "skip", "failure_policy": "local",
        "cost": 1, "priority": 100, "message": "", "count_refusals": False, "limits": limits,
    }  # fmt: skip
    return InlineRule(RuleRecord(**given | fields), value)


def ask(address: str = "203.0.113.1") -> HttpRequest:
    return RequestFactory().get("/", REMOTE_ADDR=address)


def test_it_is_decided_with_the_rule_set_in_one_call(
    check: Callable[..., Decision], make_rule: MakeRule, redis_client: redis.Redis
) -> None:
    make_rule("all", quota=9, priority=200)
    check(ask(), extra=[coded()])
    redis_client.config_resetstat()
    request = ask()
    decision = check(request, extra=[coded()])
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert [(str(result.rule), result.verdict.remaining) for result in decision.results if result.verdict] == [
        ("coded", 0),
        ("all", 7),
    ]
    assert decision is request.ratelimit  # type: ignore[attr-defined]


def test_values_have_counters_of_their_own_and_reach_no_engine_in_clear(
    check: Callable[..., Decision], clock: Clock
) -> None:
    answers = [check(ask(), extra=[coded(quota=1, value=value)]) for value in ("id:1", "mail:ann@x.org", "id:1")]
    assert [answer.allowed for answer in answers] == [True, True, False]
    verdict = answers[1].results[0].verdict
    assert verdict is not None
    assert (verdict.charge.key, verdict.charge.usage) == (f"coded:{digest('mail:ann@x.org')}", "coded|")


def test_it_is_counted_under_its_slug(check: Callable[..., Decision], redis_client: redis.Redis) -> None:
    check(ask(), extra=[coded()])
    assert sums_of(backend.get_engine(), "allowed") == {"coded": (1,)}


def test_it_is_decided_once(check: Callable[..., Decision], clock: Clock) -> None:
    request, rule = ask(), coded(quota=1)
    assert check(request, extra=[rule, rule]).allowed
    assert check(request, extra=[rule]).allowed


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("skip", [True, True, True]), ("ip", [True, False, True]), ("deny", [False, False, False])],
)
def test_a_missing_value(check: Callable[..., Decision], clock: Clock, missing: str, expected: list[bool]) -> None:
    rule = coded(quota=1, value=None, missing_partition=missing)
    answers = [check(ask(address), extra=[rule]) for address in ("203.0.113.1", "203.0.113.1", "203.0.113.2")]
    assert [answer.allowed for answer in answers] == expected


def test_a_clock_of_ones_own(check: Callable[..., Decision], engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_engine", engine)
    moments = (0, 0, 0, 43_199_999_999, 43_200_000_000)
    answers = [check(ask(), extra=[coded()._replace(now_us=moment)]) for moment in moments]
    assert [answer.allowed for answer in answers] == [True, True, False, False, True]


def test_shadow_and_off(check: Callable[..., Decision], clock: Clock) -> None:
    for mode, results in (("shadow", 1), ("off", 0)):
        decisions = [check(ask(), extra=[coded(quota=1, mode=mode)]) for _ in range(2)]
        assert [(each.allowed, len(each.results)) for each in decisions] == [(True, results)] * 2


def test_an_operators_rule_of_the_same_slug_takes_its_place(
    check: Callable[..., Decision], make_rule: MakeRule, clock: Clock
) -> None:
    make_rule("coded", quota=5)
    (result,) = check(ask(), extra=[coded(quota=1)]).results
    assert result.limit.quota == 5
