"""Keys among shards, and calls that are taken back because another shard had the last word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from threading import Thread, current_thread
from typing import Any
from zlib import crc32

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit, Verdict
from django_ratelimiter.engine.base import Version
from django_ratelimiter.engine.call import Answer, Call, CounterStates
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.commands import ShardCommands
from django_ratelimiter.engine.redis.protocol import CallEncoder, ScriptMode
from django_ratelimiter.engine.usage import in_order, shard_of
from django_ratelimiter.exceptions import EngineUnavailable
from tests.clusters import Cluster
from tests.engine.hits import CASES, limit_of
from tests.engine.redis.test_usage_counts import FIRST, collected
from tests.engine.trio import HOUR

FIVE = Limit(5, 60, "fixed_window")


@pytest.fixture
def engine(redis_client: redis.Redis) -> RedisEngine:
    return RedisEngine(redis_client, namespace="test")


# Shards


def test_a_charge_lies_in_the_shard_of_its_partition() -> None:
    planner = CallEncoder("ns", shards=64)
    for text in ("", "a", "user:42", "ключ"):
        assert planner.shard_of(Charge("key", FIVE, partition=text)) == crc32(text.encode()) % 64
        assert planner.shard_of(Charge(text, FIVE)) == crc32(text.encode()) % 64
    shards = {planner.shard_of(Charge(f"key{number}", FIVE)) for number in range(1_000)}
    assert shards == set(range(64))
    assert CallEncoder("ns").shard_of(Charge("a", FIVE)) == 0


def test_all_keys_of_a_call_stand_under_the_tag_of_its_shard() -> None:
    planner, charge = CallEncoder("ns", shards=64), Charge("key", FIVE, partition="user", usage="a|")
    shard = planner.shard_of(charge)
    packed = planner.encode(ScriptMode.CHECK, Call.of([charge]), (), 3, None, (HOUR,), shard=shard)
    assert packed.count(b"{ns:") == packed.count(b"{ns:%d}:" % shard) == len(["version", "usage", "recent", "key"])
    assert b"{ns:%d}:version\r\n" % shard in packed
    assert b"{ns:%d}:key:f60\r\n" % shard in packed


def test_a_batch_names_its_shard_unless_it_is_the_first() -> None:
    batches = ["9:beef:63", "10:cafe", "9:cafe:7"]
    assert [shard_of(batch) for batch in batches] == [63, 0, 7]
    assert in_order(batches) == ["9:beef:63", "9:cafe:7", "10:cafe"]


# Undo


def undo(engine: RedisEngine, verdicts: list[Verdict]) -> None:
    call = Call.of([verdict.charge for verdict in verdicts])
    answer = Answer.of(call, CounterStates(verdicts[0].at_us, (), (), (), ()), verdicts)
    answer.is_rejected = any(each.charge.gating and not each.allowed for each in verdicts)
    engine._transport.call(engine.encode_undo(answer))


def states(client: redis.Redis, charges: list[Charge]) -> list[int]:
    return [verdict.remaining for verdict in RedisEngine(client, "test").peek(charges, HOUR)]


@pytest.mark.parametrize("case", CASES)
def test_what_is_undone_was_never_spent_and_never_counted(
    engine: RedisEngine, redis_client: redis.Redis, case: str
) -> None:
    charges = [Charge("a", limit_of(case, 60), 2, usage="a|"), Charge("b", FIVE, usage="b|", gating=False)]
    engine.check(charges, now_us=HOUR)
    before = states(redis_client, charges)
    undo(engine, engine.check(charges, now_us=HOUR))
    assert states(redis_client, charges) == before
    assert [count[1:3] for count in collected(engine)] == [("a|", 1), ("b|", 1)]


def test_a_rejected_call_is_undone_in_its_counts(engine: RedisEngine) -> None:
    charges = [Charge("a", FIVE, usage="a|"), Charge("b", FIVE, 6, usage="b|")]
    undo(engine, engine.check(charges, now_us=HOUR))
    assert collected(engine) == []


def test_a_count_that_was_collected_already_is_taken_back_by_a_batch(engine: RedisEngine) -> None:
    verdicts = engine.check([Charge("a", FIVE, usage="a|")], now_us=HOUR)
    before = collected(engine)
    undo(engine, verdicts)
    after = collected(engine)
    assert [(count.minute, count.allowed) for count in (*before, *after)] == [(FIRST, 1), (FIRST, -1)]


def test_a_field_that_was_taken_back_is_counted_again(engine: RedisEngine) -> None:
    charge = Charge("a", Limit(5, 60, Algorithm.GCRA), usage="a|")
    undo(engine, engine.check([charge], now_us=HOUR))
    engine.check([charge], now_us=HOUR)
    assert [count.allowed for count in collected(engine)] == [1]


# Units in advance


def test_a_call_over_shards_fetches_in_each_and_takes_all_back_if_one_rejects(running_cluster: Cluster) -> None:
    running_cluster.flush()
    engine = RedisEngine(LazyRedisCluster(running_cluster.urls[0]), deadline=60)
    charges = [Charge(f"key{number}", Limit(100, 3_600)) for number in range(4)]
    answer: Any = engine.check(Call.of(charges).fetching((9, 0, 9, 99)))
    assert [*answer.taken] == [9, 0, 9, 12]
    assert [each.remaining for each in answer] == [90, 99, 90, 87]
    receipts = [replace(each, spent=units) for each, units in zip(answer, answer.taken, strict=True)]
    answer = engine.check(Call.of([*charges, Charge("key4", FIVE, 6)]).fetching((9,) * 5, receipts))
    assert (answer.is_rejected, [*answer.taken]) == (True, [0] * 5)
    assert [each.remaining for each in engine.peek(charges)] == [99] * 4
    assert [each.spent for each in receipts] == [0] * 4
    answer = engine.check(Call.of(charges[:1]).fetching((5,)))
    engine.check(Call.of(()).fetching((), [replace(answer[0], spent=5)]))
    assert engine.peek(charges[:1])[0].remaining == 98


# Versions


def test_versions_of_all_shards_are_read_by_one_pipeline_for_each_node(
    running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_cluster.flush()
    client = LazyRedisCluster(running_cluster.urls[0])
    engine = RedisEngine(client, deadline=60)
    assert engine.versions() == [None] * engine.shards
    engine.publish(Version(7))
    for shard, text in ((5, "0:6"), (6, "garbage")):
        key = engine.version_key(shard)
        running_cluster.owner(key).ask("SET", key, text)
    engine.note_proxy("10.0.0.1")
    threads: list[Thread] = []
    execute = redis.client.Pipeline.execute

    def executed(self: Any, **options: Any) -> Any:
        threads.append(current_thread())
        return execute(self, **options)

    monkeypatch.setattr(redis.client.Pipeline, "execute", executed)
    versions = Counter(engine.versions())
    assert threads.count(current_thread()) == 3  # since the publication, another thread may read the topology
    assert versions == {None: 1, Version(6): 1, Version(7): engine.shards - 2}
    assert engine.proxies() == ["10.0.0.1"]
    client.close()


def test_versions_of_a_node_that_is_away_are_left_out(engine: RedisEngine, redis_client: redis.Redis) -> None:
    away = {0, 2}

    def run(shard: int, command: Callable[[redis.Redis], list[object]]) -> list[object]:
        if shard in away:
            raise EngineUnavailable("gone")
        return command(redis_client)

    engine.commands = ShardCommands(CallEncoder("test", shards=4), run, node_of=lambda shard: shard % 2)
    assert engine.versions() == [None, None]
    away |= {1, 3}
    with pytest.raises(EngineUnavailable):
        engine.versions()
