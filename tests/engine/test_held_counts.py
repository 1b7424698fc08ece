"""Usage that a process counts by itself: it travels with later calls, and is added once whatever becomes of them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import redis

from django_ratelimiter.engine import Charge, Engine, Limit, StaleRules, UsageCount
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.usage import (
    LEASE_SECONDS,
    MAX_CARRIED,
    RESEND_SECONDS,
    UsageBuffer,
    UsageCarry,
    counts_of,
    field_of,
)
from tests.engine.redis.test_usage_counts import FIRST, collected
from tests.engine.trio import HOUR

FIVE = Limit(5, 60, "fixed_window", soft_quota=3)
HELD = UsageCarry("one", ((FIRST - 3, "a|\nA", 2), (FIRST, "a|\na", 4), (FIRST, "a|\n~b|\nDS", 1)))


def test_held_counts_are_added_once_however_often_they_are_sent(engine: Engine) -> None:
    charge = Charge("key", FIVE, usage="a|")
    for _ in range(3):
        engine.check([charge], now_us=HOUR, counts=HELD)
    engine.check([charge], now_us=HOUR, counts=replace(HELD, id="another"), reject=True)
    assert collected(engine) == [
        UsageCount(FIRST - 3, "a|", allowed=4, degraded=4),
        UsageCount(FIRST, "a|", allowed=3 + 2 * 4, rejected=2, degraded=2, rejected_by_other=1),
        UsageCount(FIRST, "b|", allowed=2, soft_exceeded=2, degraded=2),
    ]


def test_held_counts_need_no_charge_of_their_own(engine: Engine) -> None:
    engine.check([], now_us=HOUR, counts=replace(HELD, entries=HELD.entries[:1]))
    assert collected(engine) == [UsageCount(FIRST - 3, "a|", allowed=2, degraded=2)]


def test_held_counts_of_a_stale_call_wait_for_the_next(engine: Engine) -> None:
    engine.publish(2)
    with pytest.raises(StaleRules):
        engine.check([], version=1, counts=HELD)
    assert collected(engine) == []
    engine.check([], version=2, counts=HELD)
    assert len(collected(engine)) == 3


def test_held_counts_of_a_collected_minute_make_a_batch_of_their_own(engine: Engine) -> None:
    engine.check([Charge("key", FIVE, usage="a|")], now_us=HOUR)
    assert collected(engine) == [UsageCount(FIRST, "a|", allowed=1)]
    engine.check([], counts=replace(HELD, entries=((FIRST, "a|\na", 1),)))
    assert collected(engine) == [UsageCount(FIRST, "a|", allowed=1)]


def test_an_id_is_known_for_a_day(redis_client: redis.Redis) -> None:
    RedisEngine(redis_client, "held").check([], counts=HELD)
    assert 86_300 < redis_client.ttl("{held:0}:held:one") <= 86_400


@pytest.mark.parametrize("outcomes", ["ad", "AD"])
def test_letters_of_both_cases_count_alike(outcomes: str) -> None:
    """But for telling who decided; a label that is in capitals itself says nothing of it."""
    calls = 3 if outcomes.isupper() else 0
    assert counts_of(7, {f"A|PRO\n~B|\n{outcomes}": 3}) == [
        UsageCount(7, "A|PRO", allowed=3, degraded=calls),
        UsageCount(7, "B|", shadow_rejected=3, degraded=calls),
    ]


def test_counts_that_cancel_each_other_are_none() -> None:
    assert counts_of(7, {"a|\na": 1, "a|\nd": 0, "a|\n\naa": -1}) == []
    assert counts_of(7, {"a|\ns": -1}) == [UsageCount(7, "a|", allowed=-1, soft_exceeded=-1)]


def test_a_field_tells_labels_and_outcomes(engine: Engine) -> None:
    soft, shadow = Charge("soft", FIVE, 4, usage="a|"), Charge("no", FIVE, 6, gating=False, usage="b|")
    verdicts = engine.check([soft, shadow, Charge("uncounted", FIVE)], now_us=HOUR)
    assert field_of(verdicts, is_rejected=False) == "a|\n~b|\n\nsda"
    assert field_of(verdicts, is_rejected=False, degraded=True) == "a|\n~b|\n\nSDA"
    assert field_of(verdicts[2:], is_rejected=False) == ""
    assert collected(engine) == counts_of(FIRST, {field_of(verdicts, is_rejected=False): 1})


# UsageBuffer


def test_what_is_taken_is_gone_once_it_is_counted() -> None:
    unsent = UsageBuffer()
    assert unsent.lease() is None
    unsent.add(7, "a|\nA")
    unsent.add(7, "a|\nA", 2)
    unsent.add(8, "a|\nA")
    held = unsent.lease()
    assert held is not None
    assert held.entries == ((7, "a|\nA", 3), (8, "a|\nA", 1))
    assert unsent.lease() is None
    unsent.acknowledge(held)
    unsent.return_lease(held)
    assert unsent.lease() is None


def test_what_failed_is_sent_again_as_it_was() -> None:
    """Under its old id, for it may have been counted; what came in the meantime goes by another."""
    unsent = UsageBuffer()
    unsent.add(7, "a|\nA")
    first = unsent.lease()
    unsent.add(7, "a|\nA")
    unsent.return_lease(first)
    assert unsent.lease() == first
    second = unsent.lease()
    assert second is not None
    assert second.entries == first.entries
    assert second.id != first.id


def test_what_waits_for_its_own_shard_lets_others_pass() -> None:
    now = [0.0]
    unsent = UsageBuffer(clock=lambda: now[0])
    unsent.add(7, "a|\nA")
    first = unsent.lease()
    assert first is not None
    first.shard = 3
    unsent.acknowledge(first)
    unsent.add(8, "a|\nA")
    second = unsent.lease()
    assert second is not None
    unsent.acknowledge(second)
    assert second.entries == ((8, "a|\nA", 1),)
    assert unsent.lease() is None
    now[0] = RESEND_SECONDS
    assert unsent.lease() is first
    first.shard = None
    unsent.acknowledge(first)
    assert not unsent


def test_what_a_cancelled_task_has_taken_is_taken_again() -> None:
    now = [0.0]
    unsent = UsageBuffer(clock=lambda: now[0])
    unsent.add(7, "a|\nA")
    first = unsent.lease()
    now[0] = LEASE_SECONDS - 1
    assert unsent.lease() is None
    now[0] = LEASE_SECONDS
    assert unsent.lease() == first


def test_no_call_carries_too_much() -> None:
    unsent = UsageBuffer()
    for number in range(MAX_CARRIED + 1):
        unsent.add(7, f"{number}|\nA")
    assert [len(unsent.lease().entries) for _ in range(2)] == [MAX_CARRIED, 1]


def test_a_long_outage_costs_minutes_and_no_calls() -> None:
    unsent = UsageBuffer(max_fields=2)
    for minute in (1, 2, 3, 3, 4):
        unsent.add(minute, "a|\nA")
    unsent.add(4, "b|\nA")
    assert unsent.lease().entries == ((1, "a|\nA", 1), (2, "a|\nA", 4))


def test_a_fork_leaves_what_is_held_to_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else both would send it, each under an id of its own."""
    unsent = UsageBuffer()
    unsent.add(7, "a|\nA")
    held = unsent.lease()
    unsent.add(8, "a|\nA")
    with monkeypatch.context() as child, unsent._lock:  # which another thread of the parent holds
        child.setattr(os, "getpid", lambda: -1)
        unsent.return_lease(held)
        assert unsent.lease() is None
