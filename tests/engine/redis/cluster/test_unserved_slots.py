"""A slot of a cluster that nobody serves, or that moves: the shards in all the others are still decided."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.connections.handshake import Handshake
from example_project.redis_server import free_port
from tests.clusters import Cluster, until

SHARDS, UNSERVED = 8, 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two masters, one of which has lost the slot of one shard."""
    slot = key_slot(f"rl:{UNSERVED}".encode())
    with Cluster(masters=2, replicas=0, full_coverage=False, steady=True) as cluster:
        for server in cluster.servers:
            server.ask("CLUSTER", "DELSLOTS", slot)
        yield cluster


@pytest.fixture
def engine(of_either_kind: Any, cluster: Cluster) -> Iterator[Any]:
    with closing(LazyRedisCluster(cluster.urls[0])) as client:
        yield of_either_kind(RedisEngine(client, shards=SHARDS, deadline=20.0))


def one_of_each_shard(engine: Any) -> dict[int, Charge]:
    charges: dict[int, Charge] = {}
    shard_of = getattr(engine, "_engine", engine).shard_of
    for number in range(200):
        charge = Charge(f"key{number}", Limit(1_000, 60), partition=str(number))
        charges.setdefault(shard_of(charge), charge)
    assert len(charges) == SHARDS
    return charges


def is_decided(engine: Any, charge: Charge) -> bool:
    with suppress(EngineUnavailable):
        return bool(engine.check([charge])[0].allowed)
    return False


def test_the_shards_in_other_slots_are_decided(engine: Any) -> None:
    charges = one_of_each_shard(engine)
    decided = {shard for shard in charges if is_decided(engine, charges[shard])}
    assert decided == set(charges) - {UNSERVED}


def test_a_slot_that_is_lost_meanwhile_does_not_open_the_breaker(engine: Any) -> None:
    """The process still takes the node for the one that serves it."""
    charges = one_of_each_shard(engine)
    until(lambda: engine.check([charges[0]]), "the process knows the cluster")
    nodes = getattr(engine, "_engine", engine)._cluster
    nodes = getattr(nodes, "threads", nodes)
    topology = nodes.topology
    neighbour = next(shard for shard in charges if shard != UNSERVED)
    topology.refresh_soon = lambda address=None: None
    topology._addresses[UNSERVED] = topology._addresses[neighbour]
    for _ in range(2 * MAX_FAILURES):
        with pytest.raises(EngineUnavailable, match="not served"):
            engine.check([charges[UNSERVED]])
    assert not nodes.is_down(neighbour)
    assert is_decided(engine, charges[neighbour])


ELSEWHERE = [
    MovedError("1 127.0.0.1:7000"),
    AskError("1 127.0.0.1:7000"),
    TryAgainError("Multiple keys request during rehashing of slot"),
    ClusterDownError("Hash slot not served"),
]


@pytest.mark.parametrize("error", ELSEWHERE, ids=lambda error: type(error).__name__)
def test_a_new_connection_is_of_use_though_one_shard_is_elsewhere(error: Exception) -> None:
    """When it asks for the run, and when it drops the version: the slot may go between the two."""
    client = LazyRedisCluster(f"redis://127.0.0.1:{free_port()}")
    handshake = Handshake(RedisEngine(client, shards=SHARDS))
    steps = handshake.steps()
    next(steps)
    about = [b"run_id:abc\r\n", b"master_replid:def\r\n", [1]]
    burst = steps.send([*about, *(error if shard == UNSERVED else b"older" for shard in range(SHARDS))])
    assert burst.replies == 2 * (SHARDS - 1)
    assert b"{rl:%d}" % UNSERVED not in burst.packed
    with pytest.raises(StopIteration):
        steps.send([error, error, *([1] * (burst.replies - 2))])
    client.close()


def test_a_node_whose_cluster_is_down_is_of_no_use() -> None:
    client = LazyRedisCluster(f"redis://127.0.0.1:{free_port()}")
    steps = Handshake(RedisEngine(client, shards=SHARDS)).steps()
    next(steps)
    with pytest.raises(ClusterDownError):
        steps.send([b"", b"", [1], *([ClusterDownError("The cluster is down")] * SHARDS)])
    client.close()
