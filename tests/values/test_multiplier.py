"""Limits multiplied for a caller."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.values.multiplier import multiply_limit

from ..engine.strategies import limits
from ..rules.build import limit_data, rule_data, snapshot

HOUR = 3_600_000_000


def test_quota_burst_and_soft_quota_are_multiplied() -> None:
    limit = Limit(10, 60, "token_bucket", burst=25, soft_quota=5)
    assert multiply_limit(limit, Decimal(2)) == Limit(20, 60, "token_bucket", burst=50, soft_quota=10)
    assert multiply_limit(limit, Decimal("0.5")) == Limit(5, 60, "token_bucket", burst=12, soft_quota=2)
    assert multiply_limit(limit, Decimal("0.001")) == Limit(1, 60, "token_bucket", burst=1)


def test_a_request_of_the_rules_cost_can_still_pass() -> None:
    rule = RuleSet.from_snapshot(snapshot(rule_data(cost=5, limits=[limit_data(quota=10)]))).rules[0]
    assert rule.limits_for(None, Decimal("0.1"))[0].limit.capacity == 5
    assert rule.limits_for(None)[0].limit.capacity == rule.limits_for(None, Decimal(1))[0].limit.capacity == 10


def test_what_lets_nobody_pass_is_not_opened() -> None:
    rule = RuleSet.from_snapshot(snapshot(rule_data(cost=2, limits=[limit_data(quota=1)]))).rules[0]
    assert rule.limits_for(None, Decimal(5)) == rule.limits_for(None)


def test_what_cannot_be_kept_is_not_promised() -> None:
    assert multiply_limit(Limit(8_000, 60, "sliding_window_log"), Decimal(2)).quota == 10_000
    assert multiply_limit(Limit(2**47, 60, "fixed_window"), Decimal(9)).quota == 2**48 - 1


@given(limit=limits(), multiplier=st.decimals("0.001", "99999.999", places=3))
def test_every_limit_can_be_multiplied_and_counts_as_before(limit: Limit, multiplier: Decimal) -> None:
    scaled = multiply_limit(limit, multiplier)
    assert scaled.tag == limit.tag
    assert scaled == limit or multiplier > 1 or scaled.capacity <= limit.capacity


def test_what_was_spent_is_kept() -> None:
    engine, limit = MemoryEngine(), Limit(10, 60, "gcra")
    assert engine.check([Charge("key", limit, 10)], now_us=HOUR)[0].allowed
    [verdict] = engine.check([Charge("key", multiply_limit(limit, Decimal(2)))], now_us=HOUR)
    assert (verdict.allowed, verdict.remaining) == (True, 9)
