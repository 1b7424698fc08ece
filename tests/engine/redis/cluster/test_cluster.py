"""The engine on a cluster: shards, all or nothing over several of them, and nodes that change hands."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, MemoryEngine, StaleRules, UsageCount
from django_ratelimiter.engine.call import Call
from django_ratelimiter.engine.redis import AsyncRedisEngine, LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.usage import UsageCarry, continued, label_of
from example_project.redis_server import HOST
from tests.clusters import Cluster, ServerWith, until
from tests.counting import sums_of
from tests.engine.trio import HOUR

FIVE = Limit(5, 86_400, "token_bucket")


def charge(shard: int, limit: Limit = FIVE, **options: Any) -> Charge:
    """A charge that lies in a shard."""
    planner = RedisEngine(LazyRedisCluster("redis://"))
    options.setdefault("usage", f"rule{shard}|")
    key = next(key for key in map(str, range(10_000)) if planner.shard_of(Charge(key, limit)) == shard)
    return Charge(key, limit, **options)


def remaining(engine: Any, *charges: Charge) -> list[int]:
    return [verdict.remaining for verdict in engine.peek(charges)]


def counted(engine: RedisEngine) -> dict[str, tuple[int, ...]]:
    """Everything that was counted: allowed and rejected by label."""
    return sums_of(engine, "allowed", "rejected")


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """The cluster that tests share, with no keys in it."""
    running_cluster.flush()
    return running_cluster


@pytest.fixture
def sync_engine(cluster: Cluster) -> Iterator[RedisEngine]:
    client = LazyRedisCluster(cluster.urls[0])
    yield RedisEngine(client)
    client.close()


@pytest.fixture
def engine(of_either_kind: Any, sync_engine: RedisEngine) -> Any:
    return of_either_kind(sync_engine)


def test_callers_of_a_call_are_corrected_in_every_shard(cluster: Cluster, sync_engine: RedisEngine) -> None:
    many, exact = Limit(100, 86_400, "token_bucket"), {"exact": True, "usual_cost": 1}
    charges, last = [charge(3, many, **exact), charge(40, many, cost=3, **exact)], charge(50, cost=6, **exact)
    sync_engine.check(charges)
    assert not sync_engine.check([*charges, last])[2].allowed
    answer: Any = sync_engine.check(Call.of(charges))
    later = Call.of([last]).continuing(continued((), answer, is_rejected=False))
    assert not sync_engine.check(later)[0].allowed
    counts = sums_of(sync_engine, "allowed", "rejected", "rejected_by_other", "units")
    expected = (1, 0, 2, 1), (1, 0, 2, 3), (0, 2, 0, 0)
    assert counts == {
        label_of(each).removesuffix("|"): found for each, found in zip((*charges, last), expected, strict=True)
    }


# All or nothing


def test_a_call_spends_in_every_shard_or_in_none(engine: Any, sync_engine: RedisEngine) -> None:
    charges = [charge(9), charge(3, Limit(2, 86_400, "token_bucket")), charge(40)]
    assert [verdict.remaining for verdict in engine.check(charges)] == [4, 1, 4]
    engine.check(charges)
    verdicts = engine.check(charges)
    assert [(verdict.allowed, verdict.remaining, verdict.spent) for verdict in verdicts] == [
        (True, 3, 0),
        (False, 0, 0),
        (True, 3, 0),
    ]
    assert remaining(engine, *charges) == [3, 0, 3]
    answer = engine.check(Call.of(charges))
    assert (answer.is_rejected, answer.binding, list(answer.states.remaining)) == (True, 1, [3, 0, 3])
    assert answer.retry_after == answer[1].retry_after
    assert [verdict.charge for verdict in answer] == charges
    assert counted(sync_engine) == {"rule9": (2, 0), "rule3": (2, 2), "rule40": (2, 0)}


def test_part_of_a_receipt_is_refunded_in_every_shard(engine: Any) -> None:
    charges = [charge(place)._replace(cost=4) for place in (3, 40)]
    receipts = engine.check(charges)
    for receipt in receipts:
        receipt.spent = 3
    engine.refund(receipts)
    assert remaining(engine, *charges) == [4, 4]
    assert [receipt.remaining for receipt in receipts] == [4, 4]


def test_stale_rules_in_a_later_shard_leave_nothing_spent_or_counted(engine: Any, sync_engine: RedisEngine) -> None:
    charges = [charge(3), charge(40)]
    engine.publish(1)
    engine.check(charges, version=1)
    engine.check([charges[1]], version=2)  # whoever has newer rules raises the version, in this shard only
    with pytest.raises(StaleRules) as caught:
        engine.check(charges, version=1)
    assert caught.value.number == 2
    assert remaining(engine, *charges) == [4, 3]
    assert counted(sync_engine) == {"rule3": (1, 0), "rule40": (2, 0)}


def test_units_of_a_call_that_fails_or_is_rejected_in_a_later_shard_are_not_counted(
    cluster: Cluster, engine: Any, sync_engine: RedisEngine
) -> None:
    first, later = charge(5, Limit(99, 60), cost=7, usual_cost=1), charge(40, cost=3, usual_cost=2)
    for _ in range(3):
        engine.check([first, later])  # the first is allowed, the others are rejected
    owner = cluster.owner("{rl:40}")
    owner.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(EngineUnavailable):
            engine.check([first, later])
    finally:
        owner.ask("CONFIG", "SET", "maxmemory", "0")
    receipts = engine.check([first])
    receipts[0].spent = 4
    engine.refund(receipts)
    assert sums_of(sync_engine, "allowed", "units") == {"rule5": (2, 7 + 3), "rule40": (1, 3)}


def test_an_impossible_charge_leaves_nothing_spent(engine: Any) -> None:
    with pytest.raises(ValueError, match="cost"):
        engine.check([charge(3), charge(40, cost=-1)])
    assert remaining(engine, charge(3)) == [5]


def test_what_is_refunded_released_or_reset_lies_anywhere(engine: Any) -> None:
    leases = [charge(3, Limit(2, 60, "concurrency")), charge(40, Limit(2, 60, "concurrency"))]
    verdicts = engine.check([*leases, charge(50)])
    engine.release(verdicts)
    assert remaining(engine, *leases, charge(50)) == [2, 2, 4]
    engine.refund(verdicts)
    assert remaining(engine, charge(50)) == [5]
    engine.check([*leases, charge(50)])
    engine.reset([*leases, charge(50)])
    assert remaining(engine, *leases, charge(50)) == [2, 2, 5]


def summed(batches: Iterable[list[UsageCount]]) -> list[UsageCount]:
    """The counts of all batches, of which one may correct another."""
    totals: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0] * 8)
    for minute, label, *counts in (count for batch in batches for count in batch):
        totals[minute, label] = [sum(both) for both in zip(totals[minute, label], counts, strict=True)]
    return sorted(UsageCount(*key, *counts) for key, counts in totals.items() if any(counts))


@pytest.mark.parametrize("seed", range(2))
def test_it_decides_as_the_engine_in_memory_does(engine: Any, sync_engine: RedisEngine, seed: int) -> None:
    """`reset_after` aside, which a rejected call tells as if an earlier shard had spent."""
    chance = random.Random(seed)
    algorithms = ("fixed_window", "sliding_window_counter", "token_bucket", "gcra", "sliding_window_log")
    charges = [
        Charge(
            f"{seed}-{number}",
            Limit(quota, 60, chance.choice(algorithms), soft_quota=1),
            usage=f"rule{number}|",
            usual_cost=number % 3,
        )
        for number, quota in enumerate(chance.randint(2, 9) for _ in range(6))
    ]
    memory, now, receipts = MemoryEngine(), HOUR, ([], [])  # type: ignore[var-annotated]
    for _ in range(150):
        now += chance.choice([0, 1, 1_000_000, 20_000_000])
        asked = [
            each._replace(cost=chance.randint(0, 3), gating=chance.random() < 0.8, count_refusals=chance.random() < 0.2)
            for each in chance.sample(charges, chance.randint(1, 4))
        ]
        found = [
            each.check(asked, now_us=now, refund_if_denied=given, reject=len(asked) == 3 and now % 3 == 0)
            for each, given in zip((memory, engine), receipts, strict=True)
        ]
        told = [
            [(each.allowed, each.remaining, each.retry_after, each.spent, each.soft_exceeded) for each in some]
            for some in found
        ]
        assert told[0] == told[1]
        assert [each.spent for each in receipts[0]] == [each.spent for each in receipts[1]]
        receipts = (found[0], found[1]) if chance.random() < 0.3 else ([], [])
    batches = [engine.take_usage(now_us=now + HOUR) for engine in (memory, sync_engine)]
    in_memory, in_redis = (
        summed([*engine.read_usage(batch), *engine.read_requests(batch)] for batch in some)
        for engine, some in zip((memory, sync_engine), batches, strict=True)
    )
    assert in_memory == in_redis
    assert sum(count.requests for count in in_redis if not count.label) == 150


# Versions, usage, and the number of shards


def test_a_version_is_published_in_every_shard(engine: Any) -> None:
    engine.publish(7)
    engine.publish(6)
    for shard in (0, 21, 42, 63):
        with pytest.raises(StaleRules) as caught:
            engine.check([charge(shard)], version=6)
        assert caught.value.number == 7


def test_calls_without_charges_go_round(engine: Any) -> None:
    """So that each node has its share of them, and none is needed by all."""
    engine.publish(1)
    engine.check([charge(40)], version=2)  # whoever has newer rules raises the version, in this shard only
    stale = 0
    for _ in range(128):
        try:
            engine.check([], version=1)
        except StaleRules:
            stale += 1
    assert stale == 2


def test_what_a_process_has_held_is_added_once_whichever_call_it_comes_with(
    sync_engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = UsageCarry("an id", ((HOUR // 60_000_000, "held|\nA", 3),))
    nodes: Any = sync_engine._cluster
    ask = nodes.call

    def lose(*call: Any) -> None:
        ask(*call)
        raise EngineUnavailable("the reply was lost") from TimeoutError()

    monkeypatch.setattr(nodes, "call", lose)
    with pytest.raises(EngineUnavailable):
        sync_engine.check([charge(3)], counts=held)
    monkeypatch.undo()
    sync_engine.check([charge(40)], counts=held)
    assert counted(sync_engine)["held"] == (3, 0)
    sync_engine.check([charge(40)], counts=replace(held, id="another"))
    assert counted(sync_engine)["held"] == (3, 0)


def test_they_are_if_a_later_shard_fails_that_call(cluster: Cluster, engine: Any, sync_engine: RedisEngine) -> None:
    """What the first one has spent and counted is taken back; but what it was told of others stays told."""
    held = UsageCarry("an id", ((HOUR // 60_000_000, "held|\nA", 3),))
    owner = cluster.owner("{rl:40}")  # on another node than shard 5
    owner.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(EngineUnavailable):
            engine.check([charge(5), charge(40)], counts=held)
    finally:
        owner.ask("CONFIG", "SET", "maxmemory", "0")
    assert remaining(engine, charge(5), charge(40)) == [5, 5]
    engine.check([charge(9)], counts=held)
    assert counted(sync_engine) == {"held": (3, 0), "rule9": (1, 0)}


def test_held_counts_whose_shard_is_out_of_reach_hold_up_no_other(
    cluster: Cluster, engine: Any, sync_engine: RedisEngine
) -> None:
    """They may have arrived there, so that they can be sent to no other shard; the call they come with is decided."""
    held = UsageCarry("an id", ((HOUR // 60_000_000, "held|\nA", 3),), shard=40)
    owner = cluster.owner("{rl:40}")
    owner.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        assert engine.check([charge(5)], counts=held)[0].remaining == 4
        assert held.shard == 40
        rejected = UsageCarry("another", ((HOUR // 60_000_000, "held|\nA", 2),))
        with pytest.raises(EngineUnavailable):
            engine.check([charge(40)], counts=rejected)
        assert rejected.shard is None, "it was rejected, and may go anywhere"
    finally:
        owner.ask("CONFIG", "SET", "maxmemory", "0")
    for counts in (held, rejected):
        engine.check([charge(5)], counts=counts)
        assert counts.shard is None
    assert counted(sync_engine) == {"rule5": (3, 0), "held": (5, 0)}


@pytest.mark.parametrize("flushed", [False, True])
def test_two_numbers_of_shards_cannot_be_used_at_once(cluster: Cluster, engine: Any, flushed: bool) -> None:
    """Half of their counters would be two. After a flush, who first publishes the rules again has it."""
    engine.check([charge(3)])
    other: Any = RedisEngine(LazyRedisCluster(cluster.urls[1]), shards=32)
    if flushed:
        cluster.flush()
        other.publish(1)
        with pytest.raises(EngineUnavailable, match=r"SHARDS is 64, but .* over 32; another number"):
            engine.publish(1)
        other = engine
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="another number of shards needs another namespace"):
            other.check([charge(3)])
    assert RedisEngine(LazyRedisCluster(cluster.urls[1]), "other", shards=32).check([charge(3)])[0].allowed


# Nodes of the cluster


def test_every_key_of_a_shard_has_its_tag(cluster: Cluster, sync_engine: RedisEngine) -> None:
    sync_engine.publish(1)
    sync_engine.check([charge(3)], version=1)
    names = [
        name for server in cluster.servers for name in server.ask("KEYS", "*") if server.ask("ROLE")[0] == b"master"
    ]
    assert {name.partition(b"}")[0] for name in names} == {b"{rl:%d" % shard for shard in range(64)}


def test_the_copy_of_the_rules_is_in_one_shard(cluster: Cluster, sync_engine: RedisEngine) -> None:
    sync_engine.write_rules("signed")
    assert sync_engine.read_rules() == "signed"
    names = [name for server in cluster.masters for name in server.ask("KEYS", "*rules")]
    assert names == [b"{rl:0}:rules"]


def test_replicas_are_never_asked(cluster: Cluster, engine: Any) -> None:
    replicas = [server for server in cluster.servers if server not in cluster.masters]
    for server in replicas:
        server.ask("CONFIG", "RESETSTAT")
    for shard in range(0, 64, 7):
        engine.check([charge(shard)])
        engine.peek([charge(shard)])
    assert len(replicas) == 3
    for server in replicas:
        assert b"evalsha" not in server.ask("INFO", "commandstats")


@pytest.fixture
def moving(cluster: Cluster) -> Iterator[Callable[[int, str], None]]:
    """Moves the slot of a shard to another master and in the end back."""
    begun = []

    def begin(slot: int, source: ServerWith, target: ServerWith) -> None:
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))

    def end(slot: int, source: ServerWith, target: ServerWith) -> None:
        for server in (target, source):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", target.ask("CLUSTER", "MYID"))

    def move(shard: int, state: str) -> None:
        slot, source = key_slot(b"rl:%d" % shard), cluster.owner(f"{{rl:{shard}}}")
        target = next(server for server in cluster.masters if server is not source)
        begun.append((slot, source, target, state))
        begin(slot, source, target)
        if state != "beginning":
            keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100)
            source.ask("MIGRATE", HOST, target.port, "", 0, 1000, "KEYS", *keys)
        if state == "moved":
            end(slot, source, target)

    yield move
    for slot, source, target, state in begun:
        cluster.flush()
        if state == "moved":
            begin(slot, target, source)
            end(slot, target, source)
        for server in (source, target):
            server.ask("CLUSTER", "SETSLOT", slot, "STABLE")
        until(lambda: all(cluster.owner(b"{rl:40}", by) is source for by in cluster.running), "all know it")  # noqa: B023


def test_a_shard_is_followed_to_its_new_node(engine: Any, moving: Callable[[int, str], None]) -> None:
    charges = [charge(5), charge(40)]
    engine.publish(1)
    engine.check(charges, version=1)
    moving(40, "moved")
    for left in (3, 2):
        assert [verdict.remaining for verdict in engine.check(charges, version=1)] == [left, left]
    engine.reset(charges)
    assert remaining(engine, *charges) == [5, 5]


def test_a_node_that_is_taking_a_shard_over_is_not_asked_in_advance(
    cluster: Cluster, engine: Any, moving: Callable[[int, str], None]
) -> None:
    """What it counted as usage would keep the usage that is still to come from being moved."""
    engine.publish(1)
    engine.check([charge(40)], version=1)
    target = next(server for server in cluster.masters if server is not cluster.owner(b"{rl:40}"))
    moving(40, "moving")
    keys = target.ask("CLUSTER", "COUNTKEYSINSLOT", key_slot(b"rl:40"))
    with pytest.raises(EngineUnavailable):
        engine.check([charge(40)], version=1)
    assert target.ask("CLUSTER", "COUNTKEYSINSLOT", key_slot(b"rl:40")) == keys


@pytest.mark.parametrize("state", ["beginning", "moving", "moved"])
def test_rules_are_published_wherever_a_shard_is(
    cluster: Cluster, engine: Any, moving: Callable[[int, str], None], state: str
) -> None:
    charges = [charge(3), charge(40)]
    engine.publish(1)
    engine.check(charges, version=1)
    moving(40, state)
    engine.publish(2)
    engine.publish(3)
    for each in charges[: 1 if state == "moving" else 2]:
        with pytest.raises(StaleRules) as caught:
            engine.check([each], version=2)
        assert caught.value.number == 3
    assert b"0:3" in [version_in_advance(server) for server in cluster.masters]


def version_in_advance(server: ServerWith) -> bytes | None:
    """What a node holds of shard 40, though the shard may not be its own yet."""
    with redis.Redis(port=server.port, protocol=2, single_connection_client=True) as client:
        client.execute_command("ASKING")
        with suppress(redis.ResponseError):
            return client.get("{rl:40}:version")
        return None


def test_a_call_whose_keys_lie_on_both_sides_of_a_move_is_not_decided(
    engine: Any, moving: Callable[[int, str], None]
) -> None:
    charges = [charge(3), charge(40)]
    engine.publish(1)
    moving(40, "beginning")
    with pytest.raises(EngineUnavailable):  # there is a version on this side, and no counter on either
        engine.check(charges, version=1)
    assert remaining(engine, charge(3)) == [5]


def test_a_cluster_that_comes_back_is_found_by_itself() -> None:
    """Made while nothing answers, the engine says so each time, and asks again by itself."""
    with Cluster(masters=1, replicas=0) as cluster:
        for server in cluster.servers:
            server.kill()
        engine = RedisEngine(LazyRedisCluster(cluster.urls[0]), deadline=0.05)
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match="No node of the cluster can say"):
                engine.check([charge(3)])
        for server in cluster.servers:
            server.start()
        cluster.until_it_works()
        until(lambda: engine.peek([charge(3)]), "it is found")


def test_clients_that_connect_at_once_and_those_for_event_loops_will_do(cluster: Cluster) -> None:
    with redis.RedisCluster.from_url(cluster.urls[0]) as client:
        assert RedisEngine(client).check([charge(3)])[0].remaining == 4

    async def check() -> int:
        async with redis.asyncio.RedisCluster.from_url(cluster.urls[0]) as client:
            engine = AsyncRedisEngine(client)
            verdicts = await engine.check([charge(3)])
            await engine.aclose()
            return verdicts[0].remaining

    assert asyncio.run(check()) == 3
