"""Usage is counted with the decision: what is collected equals a recount of the verdicts, on both engines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, Engine, Limit, MemoryEngine, UsageCount, Verdict
from django_ratelimiter.engine.redis import RedisEngine
from tests.counting import usage_of
from tests.engine.trio import HOUR

MINUTE = 60_000_000
DAY = 1_440 * MINUTE
LATER = HOUR + 100 * MINUTE
FIRST = HOUR // MINUTE
FIVE = Limit(5, 86_400, "fixed_window")

collected = partial(usage_of, now_us=LATER)


def check(engine: Engine, *charges: Charge, times: int = 1, minute: int = 0) -> None:
    for _ in range(times):
        engine.check(charges, now_us=HOUR + minute * MINUTE)


def test_a_call_without_labels_counts_nothing(engine: Engine) -> None:
    check(engine, Charge("a", FIVE))
    check(engine)
    assert engine.take_usage(now_us=LATER) == []


def test_peeks_refunds_and_rejected_mistakes_count_nothing(engine: Engine) -> None:
    charge = Charge("a", FIVE, usage="a|")
    receipts = engine.check([charge], now_us=HOUR)
    engine.peek([charge], HOUR)
    engine.refund(receipts)
    with pytest.raises(ValueError, match="same key"):
        engine.check([charge, charge])
    assert collected(engine) == [UsageCount(FIRST, "a|", allowed=1)]


@pytest.mark.parametrize("label", ["a\n|", "\n", "a|\r\n"])
def test_a_label_is_one_line(engine: Engine, label: str) -> None:
    with pytest.raises(ValueError, match="usage: a label is one line"):
        engine.check([Charge("a", FIVE, usage=label)])
    assert engine.peek([Charge("a", FIVE)])[0].remaining == 5


def test_labels_of_any_text(engine: Engine) -> None:
    labels = ["a:b|c d", "règle|🔑", "%s|", " |", "'\"\\|"]
    check(engine, *(Charge(label, FIVE, usage=label) for label in labels))
    assert collected(engine) == sorted(UsageCount(FIRST, label, allowed=1) for label in labels)


def test_a_minute_is_closed_once_it_has_passed(engine: Engine) -> None:
    charge = Charge("a", FIVE, usage="a|")
    check(engine, charge, minute=0)
    check(engine, charge, minute=1, times=2)
    assert engine.take_usage(now_us=HOUR + MINUTE - 1) == []
    (batch,) = engine.take_usage(now_us=HOUR + MINUTE)
    assert engine.read_usage(batch) == [UsageCount(FIRST, "a|", allowed=1)]
    first, second = engine.take_usage(now_us=HOUR + 2 * MINUTE)
    assert first == batch
    assert engine.read_usage(second) == [UsageCount(FIRST + 1, "a|", allowed=2)]


def test_a_batch_waits_until_it_is_dropped(engine: Engine) -> None:
    """A collector may die anywhere between: the same batch is named and read again, unchanged."""
    check(engine, Charge("a", FIVE, usage="a|"))
    batches = engine.take_usage(now_us=LATER)
    counts = engine.read_usage(batches[0])
    assert engine.take_usage(now_us=LATER) == batches
    assert engine.read_usage(batches[0]) == counts
    engine.drop_usage(batches[0])
    engine.drop_usage(batches[0])
    assert engine.take_usage(now_us=LATER) == []
    assert engine.read_usage(batches[0]) == []


def test_late_counts_form_a_batch_of_their_own(engine: Engine) -> None:
    charge = Charge("a", FIVE, usage="a|")
    check(engine, charge)
    (early,) = engine.take_usage(now_us=LATER)
    check(engine, charge, times=2)
    batches = engine.take_usage(now_us=LATER)
    assert early in batches
    assert len(set(batches)) == 2
    counts = {batch: engine.read_usage(batch) for batch in batches}
    assert counts.pop(early) == [UsageCount(FIRST, "a|", allowed=1)]
    assert list(counts.values()) == [[UsageCount(FIRST, "a|", allowed=2)]]


def test_batches_come_from_the_oldest_minute_on(engine: Engine) -> None:
    for minute in (10, 9, 0, 59, 1):
        engine.check([Charge("a", FIVE, usage="a|")], now_us=minute * MINUTE)
    minutes = [engine.read_usage(batch)[0].minute for batch in engine.take_usage(now_us=LATER)]
    assert minutes == [0, 1, 9, 10, 59]


def test_usage_keys_expire(redis_client: redis.Redis) -> None:
    """So that counts which nobody collects do not fill the server for ever; a week is left to collect them."""
    engine = RedisEngine(redis_client, "expire")
    check(engine, Charge("a", FIVE, usage="a|"))
    engine.take_usage(now_us=LATER)
    check(engine, Charge("a", FIVE, usage="a|"))
    keys = [key for key in redis_client.keys("{expire:0}:*") if not key.startswith(b"{expire:0}:a:")]
    assert len(keys) == len(["recent", "usage", "batches", "batch", "source"])
    assert all(7 * 86_400 < redis_client.ttl(key) <= 8 * 86_400 for key in keys)


def test_a_closed_minute_is_not_looked_at_again(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client, "closed")
    check(engine, Charge("a", FIVE, usage="a|"))
    assert redis_client.hlen("{closed:0}:recent") == 1
    collected(engine)
    assert redis_client.hlen("{closed:0}:recent") == redis_client.scard("{closed:0}:batches") == 0


def test_a_minute_of_many_kinds_of_calls_stays_cheap_to_count(redis_client: redis.Redis) -> None:
    """A hash that Redis searches field by field costs more with each one."""
    engine = RedisEngine(redis_client, "cheap")
    check(engine, Charge("a", FIVE, usage="a|"))
    assert redis_client.object("encoding", f"{{cheap:0}}:usage:{FIRST}") == b"hashtable"


Calls = list[tuple[int, list[Charge]]]


@st.composite
def calls(draw: st.DrawFn) -> Calls:
    labels = [f"rule{number}|{tier}" for number in range(3) for tier in ("", "pro")]
    rules = {label: draw(st.booleans()) for label in labels}
    costs = {label: draw(st.sampled_from((None, 0, 1, 3))) for label in labels}
    made: Calls = []
    for _ in range(draw(st.integers(1, 15))):
        charges = []
        for key in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)):
            label = draw(st.none() | st.sampled_from(sorted(rules)))
            soft, delay = draw(st.none() | st.integers(1, 3)), draw(st.sampled_from((None, 0, 30_000)))
            limit = Limit(4, 86_400, draw(st.sampled_from(Algorithm)), soft_quota=soft)
            cost = draw(st.integers(0, 5))
            own = {"usual_cost": costs.get(label or "")}
            charges.append(
                Charge(key, limit, cost, rules.get(label or "", True), label, draw(st.booleans()), delay, **own)
            )
        made.append((draw(st.integers(0, 3)), charges))
    return made


def recount(calls: Sequence[tuple[int, Sequence[Verdict]]]) -> list[UsageCount]:
    """Count the verdicts of each call, minute by minute, as the words of UsageCount say it."""
    totals: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0] * 8)
    for minute, verdicts in calls:
        rejected = any(verdict.charge.gating and not verdict.allowed for verdict in verdicts)
        for label in {verdict.charge.usage for verdict in verdicts if verdict.charge.usage is not None}:
            mine = [verdict for verdict in verdicts if verdict.charge.usage == label]
            allowed = all(verdict.allowed for verdict in mine)
            column = (5 if rejected else 0) if allowed else 1 if mine[0].charge.gating else 2
            totals[FIRST + minute, label][column] += 1
            totals[FIRST + minute, label][3] += allowed and any(verdict.soft_exceeded for verdict in mine)
            if allowed and not rejected and mine[0].charge.usual_cost is not None:
                totals[FIRST + minute, label][7] += mine[0].charge.cost - 1
    return sorted(UsageCount(minute, label, *counts) for (minute, label), counts in totals.items())


@given(made=calls(), closed_between=st.integers(0, 15))
def test_what_is_collected_equals_a_recount(redis_url: str, made: Calls, closed_between: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        for engine in (MemoryEngine(), RedisEngine(client, "recount")):
            verdicts, counts = [], []
            for number, (minute, charges) in enumerate(made):
                verdicts.append((minute, engine.check(charges, now_us=HOUR + minute * MINUTE)))
                if number == closed_between:
                    counts += collected(engine)
            counts += collected(engine)
            totals: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0] * 8)
            for minute, label, *outcomes in counts:
                totals[minute, label] = [sum(both) for both in zip(totals[minute, label], outcomes, strict=True)]
            assert sorted(UsageCount(*key, *outcomes) for key, outcomes in totals.items()) == recount(verdicts)
