"""Which partitions were met: how many, the top clients, and samples; in both engines and over shards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit, MemoryEngine, StaleRules, Verdict
from django_ratelimiter.engine import partition_stats as module
from django_ratelimiter.engine.call import Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.partition_stats import is_sampled, merge_top
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine, partition_notes
from django_ratelimiter.engine.redis.partition_notes import WEIGHT, PartitionTracker
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


def unique(engine: Any, label: str = "rule|free", *hours: int) -> int:
    return engine.partitions.count([(label, hours or (HOUR,))])[0]  # type: ignore[no-any-return]


def top_partitions(engine: Any, rule: str = "rule", most: int = 100) -> dict[str, tuple[int, int]]:
    return engine.partitions.top_partitions([(HOUR, rule)], most)[0]  # type: ignore[no-any-return]


def test_different_partitions_are_counted_by_label_and_hour(engine: Any) -> None:
    meet(engine, ["a", "b", "a", "c"])
    meet(engine, ["a", "b"], label="rule|pro")
    meet(engine, ["a", "d"], at=NOW_US + 59 * 60_000_000)  # in the next hour
    assert engine.partitions.hours() == {(HOUR, "rule|free"), (HOUR, "rule|pro"), (HOUR + 1, "rule|free")}
    assert (unique(engine), unique(engine, "rule|pro"), unique(engine, "rule|free", HOUR + 1)) == (3, 2, 2)
    assert unique(engine, "rule|free", HOUR, HOUR + 1) == 4
    assert engine.partitions.count([("rule|free", (HOUR,)), ("none|", (HOUR,)), ("rule|pro", (HOUR,))]) == [3, 0, 2]


def test_the_top_clients_by_what_became_of_them(engine: Any) -> None:
    meet(engine, ["a"] * 5 + ["b"] * 3 + ["c"], limit=TWO)
    assert top_partitions(engine) == {"a": (2, 3), "b": (2, 1), "c": (1, 0)}
    assert list(top_partitions(engine, most=1)) == ["a"]
    assert top_partitions(engine, "other") == {}


def test_a_call_knows_that_it_reports_its_callers(engine: Any) -> None:
    engine.peek(call := Call.of(map(charge, numbered(2))))
    assert not call.is_reported
    engine.check(call, now_us=NOW_US)
    assert call.is_reported


def test_a_shadow_rule_tells_whom_it_would_deny(engine: Any) -> None:
    meet(engine, ["a"] * 5, limit=TWO, gating=False)
    assert top_partitions(engine) == {"a": (2, 3)}


def test_a_caller_of_several_rules_counts_once_a_call_over_all_rules(engine: Any) -> None:
    """By each identity; what a rule in shadow would reject, and a rule by another identity, rejects nobody here."""
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
    assert top_partitions(engine, "*ip") == {address: (3, 0)}
    assert {each for _, each in engine.partitions.hours()} == {"a|", "b|", "shadow|", "c|"}


def test_a_rule_of_several_limits_counts_a_call_once(engine: Any) -> None:
    """And denies where one of them does, whatever other rules say."""
    charges = [
        charge("a", "two|", Limit(9, 60)),
        charge("b", "one|", MANY),
        charge("a", "two|", TWO),
        Charge("unlabelled", MANY, partition="a"),
    ]
    for _ in range(3):
        engine.check(charges, now_us=NOW_US)
    assert top_partitions(engine, "two") == {"a": (2, 1)}
    assert top_partitions(engine, "one") == {"b": (3, 0)}
    assert engine.partitions.hours() == {(HOUR, "two|"), (HOUR, "one|")}


def test_a_rejected_call_is_noted_as_its_rules_decided(engine: Any) -> None:
    engine.check([charge("a")], now_us=NOW_US, reject=True)
    assert top_partitions(engine) == {"a": (1, 0)}


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
    assert (top_partitions(engine), top_partitions(engine, "other"), unique(engine)) == ({}, {"b": (1, 0)}, 1)
    engine.partitions.drop_hours([(HOUR, "rule|free")])
    assert engine.partitions.hours() == {(HOUR, "other|")}
    assert unique(engine) == 0


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
    assert {b"unique", b"hours", b"allowed", b"rejected", b"sample", b"sampled"} <= kinds
    assert [key for key in keys if redis_client.ttl(key) <= 0] == []


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_busy_process_misses_nobody(engine: RedisEngine) -> None:
    for _ in range(partition_notes.WEIGHED_EXACTLY // 250):
        meet(engine, ["a"] * 250)
    meet(engine, [*numbered(300), *["a"] * 40])
    assert abs(unique(engine) - 301) <= 6
    assert set(engine.partitions.samples(MINUTE + 1)[MINUTE]) == {
        ("rule|free", caller) for caller in [*numbered(300), "a"] if is_sampled(caller)
    }


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
    [(hour, label)] = engine.partitions.hours()
    assert abs(unique(engine, label, hour) / addresses - 1) < 0.04
    assert len(engine._partition_tracker._notified) <= partition_notes.MAX_NOTIFIED


def test_on_an_event_loop(blocking: Any, redis_url: str) -> None:
    blocking.check([charge("a")], now_us=NOW_US)
    with redis.Redis.from_url(redis_url) as client:
        assert top_partitions(RedisEngine(client, "async")) == {"a": (1, 0)}


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_redis_that_lost_its_memory_is_told_again(engine: RedisEngine, redis_client: redis.Redis) -> None:
    engine.publish(1)
    engine.check([charge("a")], version=1, now_us=NOW_US)
    redis_client.flushdb()
    with pytest.raises(StaleRules):
        engine.check([charge("a")], version=1, now_us=NOW_US)
    engine.publish(1)
    engine.check([charge("a")], version=1, now_us=NOW_US)
    assert unique(engine) == 1


def test_shards_add_up(running_cluster: Cluster) -> None:
    running_cluster.flush()
    client = LazyRedisCluster(running_cluster.urls[0])
    engine, callers = RedisEngine(client, shards=8), numbered(40)
    meet(engine, callers)
    engine.check(over_several := Call.of(map(charge, callers)), now_us=NOW_US)
    assert over_several.is_reported
    assert unique(engine) == 40
    assert top_partitions(engine) == dict.fromkeys(callers, (2, 0))
    sampled = {("rule|free", caller) for caller in callers if is_sampled(caller)}
    assert set(engine.partitions.samples(MINUTE + 1)[MINUTE]) == sampled != set()
    engine.partitions.drop_top([(HOUR, "rule")])
    engine.partitions.drop_hours([(HOUR, "rule|free")])
    assert (engine.partitions.hours(), top_partitions(engine)) == (set(), {})
    client.close()


def test_a_partition_that_busy_processes_meet_is_known_to_one_shard_alone(
    running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 1)
    running_cluster.flush()
    with LazyRedisCluster(running_cluster.urls[0]) as client:
        for _ in range(4):
            engine = RedisEngine(client)
            for caller in numbered(100):
                meet(engine, [caller])
        assert abs(unique(engine) - 100) <= 3


class TestNotes:
    """What a process tells."""

    def tell(self, notes: PartitionTracker, partition: str, at_us: int | None = None) -> list[Any]:
        told = notes.of(Call.of([charge(partition)]))
        if told:
            notes.acknowledge(told, notes._clock() if at_us is None else at_us)
        return told

    def busy(self, clock: list[int]) -> PartitionTracker:
        """Of a process that has weighed its calls one by one for long enough."""
        notes = PartitionTracker(lambda: clock[0])
        for _ in range(partition_notes.WEIGHED_EXACTLY):
            assert self.tell(notes, "caller-2")[0].what[1] == 1
        return notes

    def test_one_call_in_sixteen_is_weighed_as_sixteen(self) -> None:
        random.seed(7)
        notes = self.busy([NOW_US])
        weights = [note.what[1] for _ in range(16_000) for note in self.tell(notes, "caller-2")]
        assert set(weights) == {WEIGHT}
        assert 0.93 < sum(weights) / 16_000 < 1.07

    def is_told_as_new(self, notes: PartitionTracker, partition: str, at_us: int | None = None) -> bool:
        """Whether one of so many calls that some are weighed tells of it."""
        told = [note for _ in range(100) for note in self.tell(notes, partition, at_us)]
        return any(note.what[0] == partition_notes.IS_NEW and partition in note.partition.split("\n") for note in told)

    def test_a_partition_is_new_once_an_hour(self) -> None:
        clock = [NOW_US]
        notes = self.busy(clock)
        assert not is_sampled("caller-3")
        for _ in range(3):
            assert self.is_told_as_new(notes, "caller-3")
            assert not self.is_told_as_new(notes, "caller-3")
            clock[0] += HOUR_US
            for _ in range(partition_notes.WEIGHED_EXACTLY):
                self.tell(notes, "caller-2")

    def test_new_ones_travel_together(self) -> None:
        notes = self.busy([NOW_US])
        callers = [caller for caller in numbered(1_000) if not is_sampled(caller) and caller != "caller-2"]
        news = [note for caller in callers for note in self.tell(notes, caller)]
        told = [caller for note in news if note.what[0] for caller in note.partition.split("\n")]
        assert len(callers) - 31 <= len(told) == len(set(told))
        assert len(news) < len(callers) / 4

    def test_what_was_not_answered_is_told_again(self) -> None:
        notes = self.busy([NOW_US])
        for _ in range(3):
            told = [note for _ in range(100) for note in notes.of(Call.of([charge("caller-3")]))]
            assert any(note.what[0] == partition_notes.IS_NEW and note.partition == "caller-3" for note in told)

    def test_what_another_hour_has_noted_is_told_again(self) -> None:
        """The clock of Redis is behind ours: it noted the partition in the hour before."""
        notes = self.busy([NOW_US])
        assert self.is_told_as_new(notes, "caller-3", NOW_US - HOUR_US)
        assert self.is_told_as_new(notes, "caller-3")

    def test_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(partition_notes, "MAX_NOTIFIED", 10)
        notes = PartitionTracker(lambda: NOW_US)
        for caller in numbered(100):
            self.tell(notes, caller)
        assert 0 < len(notes._notified) <= 10


def test_both_kinds_of_top_clients_have_their_turns() -> None:
    weights = {"busy": (9, 0), "both": (5, 5), "refused": (0, 9), "calm": (1, 0)}
    assert list(merge_top(weights, 3)) == ["busy", "refused", "both"]
    assert set(merge_top(weights, 9)) == set(weights)


def test_memory_forgets_what_nobody_collects() -> None:
    engine = MemoryEngine()
    meet(engine, ["a", SAMPLED])
    meet(engine, COMMON[:1], at=NOW_US + 61 * 60_000_000)
    assert engine.partitions.hours() == {(HOUR + 1, "rule|free")}
    assert top_partitions(engine) == {}
    assert engine.partitions.samples(MINUTE + 62) == {}


def test_memory_keeps_the_partitions_of_the_latest_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNIQUE", 10)
    engine = MemoryEngine(lambda: NOW_US)
    engine.drop_usage("0:a batch")  # so that usage is kept for days
    meet(engine, numbered(8))
    meet(engine, numbered(4), label="other|")
    assert (unique(engine), unique(engine, "other|")) == (8, 2)
    meet(engine, numbered(20), at=NOW_US + HOUR_US)
    assert (unique(engine), unique(engine, "other|"), unique(engine, "rule|free", HOUR + 1)) == (0, 0, 10)


def template(*, is_split: bool = True) -> CallTemplate:
    return CallTemplate([ChargeTemplate("rule:", "", Charge("", MANY, usage="rule|free"), is_split)])


SAMPLED = next(name for name in numbered(999) if is_sampled(name))
COMMON = [name for name in numbered(99) if not is_sampled(name)]


def test_who_has_been_told_of_takes_one_look_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 4)
    random.seed(7)
    tracker, call = PartitionTracker(lambda: NOW_US), template()
    common, sampled = Call(call, (COMMON[0],)), Call(call, (SAMPLED,))
    assert tracker.kind_of(common, NOW_US) is None  # the hour has not begun
    tracker.acknowledge(tracker.of(common, NOW_US), NOW_US)
    assert (tracker.kind_of(common, NOW_US), tracker.kind_of(sampled, NOW_US)) == ((1, 0, 0), (1, 1, 1))
    tracker.acknowledge_new(sampled, NOW_US)
    assert tracker.kind_of(sampled, NOW_US) == (1, 1, 0)
    of_another_kind = Call(template(), (COMMON[0],))
    assert tracker.kind_of(of_another_kind, NOW_US) == (WEIGHT, 0, 0)
    assert tracker.kind_of(common, NOW_US + HOUR_US) is None
    told = [found for _ in range(WEIGHT * 200) if (found := tracker.kind_of(common, NOW_US))]
    assert len(told) == WEIGHT * 200
    assert {weight for weight, *_ in told} == {0, WEIGHT}
    assert WEIGHT * 140 < sum(weight for weight, *_ in told) < WEIGHT * 260
    tracker.forget()
    assert [note.what[0] for note in tracker.of(common, NOW_US) + tracker.of(sampled, NOW_US) if note.what[0]] != []


def test_a_new_caller_of_a_busy_process_is_left_to_the_next_call_that_is_weighed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 0)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _end: 3)  # each third call is weighed
    tracker, call = PartitionTracker(lambda: NOW_US), template()
    first, new = (Call(call, (name,)) for name in COMMON[:2])
    tracker.of(first, NOW_US)
    assert tracker.kind_of(new, NOW_US) == (0, 0, 0)
    assert tracker.kind_of(first, NOW_US) == (0, 0, 0)
    assert tracker.kind_of(first, NOW_US) is None  # for it is to tell of the new one
    notes = tracker.of(first, NOW_US)
    assert [note.partition.split("\n") for note in notes if note.what[0]][-1] == [COMMON[1], COMMON[0]]


def test_who_is_sampled_is_told_of_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 0)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _end: 9)
    tracker, call = PartitionTracker(lambda: NOW_US), template()
    sampled = Call(call, (SAMPLED,))
    tracker.of(Call(call, (COMMON[0],)), NOW_US)
    for _ in range(20):
        kind = tracker.kind_of(sampled, NOW_US)
        assert kind
        assert kind[1] == 1
        tracker.acknowledge_new(sampled, NOW_US)
        assert [note for note in tracker.of(sampled, NOW_US) if note.what[0] & partition_notes.IS_SAMPLED]  # a retry


def test_counters_that_all_share_are_not_sampled() -> None:
    for is_split, flags in ((True, [3]), (False, [1])):
        tracker = PartitionTracker(lambda: NOW_US)
        notes = tracker.of(Call(template(is_split=is_split), (SAMPLED,)), NOW_US)
        assert [note.what[0] for note in notes] == flags


def test_what_may_have_been_lost_on_its_way_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 0)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _end: 3)  # each third call is weighed
    tracker, call = PartitionTracker(lambda: NOW_US), template()
    first, second, third = (Call(call, (name,)) for name in COMMON[:3])
    tracker.of(first, NOW_US)
    for charges, name in ((second, COMMON[1]), (third, COMMON[2])):
        assert tracker.of(charges, NOW_US) == []  # it is left to the next call that is weighed
        assert tracker.kind_of(charges, NOW_US) == (0, 0, 0)
        assert name in [note.partition for note in tracker.of(first, NOW_US)]
    assert tracker.kind_of(second, NOW_US) == (0, 0, 0)
    for _ in range(3):  # nobody has confirmed that this was counted
        tracker.kind_of(second, NOW_US)
    assert any(COMMON[1] in note.partition for _ in range(3) for note in tracker.of(first, NOW_US))
