"""Top partitions and samples, in both engines and over shards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit, MemoryEngine, Verdict
from django_ratelimiter.engine import partition_stats as module
from django_ratelimiter.engine.call import Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.partition_stats import is_sampled, merge_top
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine, partition_notes
from django_ratelimiter.engine.redis.partition_notes import WEIGHT, PartitionTracker
from django_ratelimiter.engine.usage import continued
from tests.clusters import Cluster

HOUR = 490_000
HOUR_US = 3_600_000_000
NOW_US = HOUR * HOUR_US + 90_000_000
MINUTE = NOW_US // 60_000_000
TWO = Limit(2, 86_400, "fixed_window")
MANY = Limit(1_000_000, 86_400, "fixed_window")


def charge(partition: str | None, label: str = "rule|free", limit: Limit = MANY, gating: bool = True) -> Charge:
    return Charge(f"{label}:{partition}", limit, usage=label, partition=partition, gating=gating)


def meet(engine: Any, partitions: Sequence[str | None], at: int = NOW_US, **options: Any) -> list[list[Verdict]]:
    return [engine.check([charge(partition, **options)], now_us=at) for partition in partitions]


def numbered(count: int, name: str = "caller") -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def top_partitions(engine: Any, rule: str = "rule", most: int = 100) -> dict[str, tuple[int, int]]:
    return engine.partitions.top_partitions([(HOUR, rule)], most)[0]  # type: ignore[no-any-return]


def test_engine_lists_hours_and_rules_that_have_callers(engine: Any) -> None:
    meet(engine, ["a", "b", "a", "c"])
    meet(engine, ["a", "b"], label="rule|pro")
    meet(engine, ["a"], label="code:shop.views|")
    meet(engine, ["a", "d"], at=NOW_US + 59 * 60_000_000)  # in the next hour
    assert engine.partitions.hours() == {(HOUR, "rule"), (HOUR, "code:shop.views"), (HOUR + 1, "rule")}


def test_the_top_clients_by_what_became_of_them(engine: Any) -> None:
    meet(engine, ["a"] * 5 + ["b"] * 3 + ["c"], limit=TWO)
    assert top_partitions(engine) == {"a": (2, 3), "b": (2, 1), "c": (1, 0)}
    assert list(top_partitions(engine, most=1)) == ["a"]
    assert top_partitions(engine, "other") == {}


def test_a_shadow_rule_tells_whom_it_would_deny(engine: Any) -> None:
    meet(engine, ["a"] * 5, limit=TWO, gating=False)
    assert top_partitions(engine) == {"a": (2, 3)}


def test_a_caller_of_several_rules_counts_once_a_call_over_all_rules(engine: Any) -> None:
    """By each identity, as rejected if any rule rejects it; what a rule in shadow would reject is not."""
    made = [
        ("a", "user", Charge("", MANY, usage="a|")), ("b", "user", Charge("", TWO, usage="b|")),
        ("shadow", "user", Charge("", Limit(1, 86_400, "fixed_window"), usage="shadow|", gating=False)),
        ("c", "ip", Charge("", MANY, usage="c|")), ("none", "ip", Charge("", MANY)), ("all", "", Charge("", MANY)),
    ]  # fmt: skip
    template = CallTemplate(
        [ChargeTemplate(f"{name}:", "", each, True, True, identity) for name, identity, each in made]
    )
    user, address = "u" * 22, "i" * 22
    for now_us in (NOW_US, NOW_US, NOW_US):
        engine.check(Call(template, (user, user, user, address, address, "-" * 22)), now_us=now_us)
    assert top_partitions(engine, "*user") == {user: (2, 1)}
    assert top_partitions(engine, "*ip") == {address: (2, 1)}
    assert {each for _, each in engine.partitions.hours()} == {"a", "b", "shadow", "c", "*user", "*ip"}


def test_a_later_call_that_rejects_corrects_what_an_earlier_one_has_noted(engine: Any) -> None:
    first = [ChargeTemplate("a:", "", Charge("", MANY, usage="a|"), identity="user")]
    second = [ChargeTemplate("b:", "", Charge("", TWO, usage="b|"), identity="ip")]
    early, late = CallTemplate(first), CallTemplate(second)
    user, address = "u" * 22, "i" * 22
    for _ in range(5):
        answer = engine.check(Call(early, (user,)), now_us=NOW_US)
        so_far = continued((), answer, is_rejected=False)
        call = Call(late, (address,)).continuing(so_far, (("a|", user), ("*user", user), ("a|", "unknown")))
        engine.check(call, now_us=NOW_US)
    assert top_partitions(engine, "a") == {user: (2, 0)}
    assert top_partitions(engine, "b") == {address: (2, 3)}
    assert top_partitions(engine, "*user") == {user: (2, 3)}


def test_a_rule_of_several_limits_counts_a_call_once(engine: Any) -> None:
    """And rejects where one of them does; what another rule rejects counts neither way."""
    charges = [
        charge("a", "two|", Limit(9, 60)),
        charge("b", "one|", MANY),
        charge("a", "two|", TWO),
        Charge("unlabelled", MANY, partition="a"),
    ]
    for _ in range(3):
        engine.check(charges, now_us=NOW_US)
    assert top_partitions(engine, "two") == {"a": (2, 1)}
    assert top_partitions(engine, "one") == {"b": (2, 0)}
    assert engine.partitions.hours() == {(HOUR, "two"), (HOUR, "one")}


def test_a_call_that_is_rejected_elsewhere_counts_neither_way(engine: Any) -> None:
    engine.check([charge("a")], now_us=NOW_US, reject=True)
    assert top_partitions(engine) == {}


def test_peeks_and_charges_without_a_partition_are_not_noted(engine: Any) -> None:
    engine.peek([charge("a")], NOW_US)
    meet(engine, [None, None])
    assert engine.partitions.hours() == set()


def test_samples_are_of_the_same_partitions_always(engine: Any) -> None:
    callers = numbered(200)
    sampled = [caller for caller in callers if is_sampled(caller)]
    assert 3 <= len(sampled) <= 30
    meet(engine, callers * 2)
    meet(engine, callers, at=NOW_US + 60_000_000)
    found = engine.partitions.samples(MINUTE + 2)
    assert found == {
        MINUTE: dict.fromkeys((("rule|free", caller) for caller in sampled), 2),
        MINUTE + 1: dict.fromkeys((("rule|free", caller) for caller in sampled), 1),
    }
    assert list(engine.partitions.samples(MINUTE + 1)) == [MINUTE]
    engine.partitions.drop_samples([MINUTE])
    assert list(engine.partitions.samples(MINUTE + 2)) == [MINUTE + 1]


def test_what_was_collected_is_dropped(engine: Any) -> None:
    meet(engine, ["a"])
    meet(engine, ["b"], label="other|")
    engine.partitions.drop_top([(HOUR, "rule")])
    assert (top_partitions(engine), top_partitions(engine, "other")) == ({}, {"b": (1, 0)})
    assert engine.partitions.hours() == {(HOUR, "other")}


def test_few_stay_of_many_and_the_top_clients_are_among_them(engine: Any) -> None:
    heavy = numbered(10, "heavy")
    for light in numbered(30, "early"):
        meet(engine, [light, *heavy])
    meet(engine, numbered(500, "late"))
    found = top_partitions(engine, most=1_000)
    assert set(heavy) <= set(found)
    assert len(found) <= module.MAX_RANKED
    assert top_partitions(engine, most=10) == dict.fromkeys(heavy, (30, 0))


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_samples_of_a_minute_are_bounded(engine: RedisEngine, redis_client: redis.Redis) -> None:
    callers = [caller for caller in numbered(17_000) if is_sampled(caller)]
    for place in range(0, len(callers), 100):
        engine.check([charge(caller) for caller in callers[place : place + 100]], now_us=NOW_US)
    assert len(callers) > module.MAX_SAMPLED == len(engine.partitions.samples(MINUTE + 1)[MINUTE])
    assert 0 < redis_client.ttl(f"{{test:0}}:sample:{MINUTE}") <= 120 * 60  # as in check.lua


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_every_key_expires(engine: RedisEngine, redis_client: redis.Redis) -> None:
    meet(engine, numbered(50), limit=TWO)
    meet(engine, numbered(50) * 2, limit=TWO)
    keys = set(redis_client.scan_iter("*"))
    kinds = {key.split(b":")[2] for key in keys}
    assert {b"hours", b"allowed", b"rejected", b"sample", b"sampled"} <= kinds
    assert [key for key in keys if redis_client.ttl(key) <= 0] == []


@pytest.mark.parametrize("addresses", [50_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_flood_from_many_addresses_fits_into_little_memory(
    engine: RedisEngine, redis_client: redis.Redis, addresses: int
) -> None:
    """The charges cost nothing, so that there are no keys but those of usage."""
    for first in range(0, addresses, 250):
        engine.check([charge(f"{number:020}")._replace(cost=0) for number in range(first, first + 250)])
    used = sum(redis_client.memory_usage(key) or 0 for key in redis_client.scan_iter("*"))
    assert used < 250_000  # bytes, which is far below 20 MB, for each rule and hour


def test_on_an_event_loop(blocking: Any, redis_url: str) -> None:
    blocking.check([charge("a")], now_us=NOW_US)
    with redis.Redis.from_url(redis_url) as client:
        assert top_partitions(RedisEngine(client, "async")) == {"a": (1, 0)}


def test_shards_add_up(running_cluster: Cluster) -> None:
    running_cluster.flush()
    client = LazyRedisCluster(running_cluster.urls[0])
    engine, callers = RedisEngine(client, shards=8), numbered(40)
    meet(engine, callers)
    engine.check(map(charge, callers), now_us=NOW_US)
    assert top_partitions(engine) == dict.fromkeys(callers, (2, 0))
    sampled = {("rule|free", caller) for caller in callers if is_sampled(caller)}
    assert set(engine.partitions.samples(MINUTE + 1)[MINUTE]) == sampled != set()
    engine.partitions.drop_top([(HOUR, "rule")])
    assert (engine.partitions.hours(), top_partitions(engine)) == (set(), {})
    client.close()


def test_both_kinds_of_top_clients_have_their_turns() -> None:
    weights = {"busy": (9, 0), "both": (5, 5), "refused": (0, 9), "calm": (1, 0)}
    assert list(merge_top(weights, 3)) == ["busy", "refused", "both"]
    assert set(merge_top(weights, 9)) == set(weights)


def test_memory_forgets_what_nobody_collects() -> None:
    engine = MemoryEngine()
    meet(engine, ["a", SAMPLED])
    meet(engine, COMMON[:1], at=NOW_US + 61 * 60_000_000)
    assert engine.partitions.hours() == {(HOUR + 1, "rule")}
    assert top_partitions(engine) == {}
    assert engine.partitions.samples(MINUTE + 62) == {}


def template(*, is_split: bool = True) -> CallTemplate:
    return CallTemplate([ChargeTemplate("rule:", "", Charge("", MANY, usage="rule|free"), is_split)])


SAMPLED = next(name for name in numbered(999) if is_sampled(name))
COMMON = [name for name in numbered(99) if not is_sampled(name)]


def test_kind_of_a_call_is_its_weight_and_who_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 4)
    monkeypatch.setattr(partition_notes, "MAX_REMEMBERED", 1)  # whoever is examined again is found again
    random.seed(7)
    tracker, call = PartitionTracker(), template()
    common, sampled = Call(call, (COMMON[0],)), Call(call, (SAMPLED,))
    assert [tracker.kind_of(each, MINUTE) for each in (common, sampled) * 2] == [(1, 0), (1, 1)] * 2
    assert common.is_reported
    told = [tracker.kind_of(sampled, MINUTE) for _ in range(WEIGHT * 200)]
    assert set(told) == {(0, 1), (WEIGHT, 1)}
    assert WEIGHT * 140 < sum(weight for weight, _ in told) < WEIGHT * 260
    assert tracker.kind_of(common, MINUTE + 60) == (1, 0)


def test_who_is_sampled_is_told_of_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 0)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _end: 9)
    tracker, call = PartitionTracker(lambda: NOW_US), template()
    tracker.of(Call(call, (COMMON[0],)), NOW_US)
    assert [len(tracker.of(Call(call, (name,)))) for name in (SAMPLED, COMMON[0], SAMPLED)] == [1, 0, 1]


def test_counters_that_all_share_are_not_sampled() -> None:
    for is_split in (True, False):
        tracker, call = PartitionTracker(lambda: NOW_US), Call(template(is_split=is_split), (SAMPLED,))
        assert [note.what[0] for note in tracker.of(call, NOW_US)] == [is_split]
        assert tracker.kind_of(call, MINUTE) == (1, is_split)
