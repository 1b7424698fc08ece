"""Slots of a cluster that nobody serves or that move, and nodes that leave it for good: the others are decided."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any
from weakref import WeakValueDictionary

import pytest
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, breaker
from django_ratelimiter.engine.breaker import MAX_FAILURES, on_state_change, open_breakers
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.cluster import topology
from django_ratelimiter.engine.redis.cluster.nodes import AsyncClusterTransport, ClusterTransport
from django_ratelimiter.engine.redis.cluster.topology import Topology
from django_ratelimiter.engine.redis.connections import async_transport, transport
from django_ratelimiter.engine.redis.connections.clients import Address, ClientFactory
from django_ratelimiter.engine.redis.connections.connection import PING
from django_ratelimiter.engine.redis.connections.server import Handshake
from django_ratelimiter.engine.redis.protocol import CallEncoder
from example_project.redis_server import HOST, free_port
from tests.clusters import Cluster, until


class OneNode:
    """A cluster of one node that nobody answers for; it may be another one from some time on."""

    is_known = True

    def __init__(self) -> None:
        self.replace()

    def replace(self) -> None:
        self.at = HOST, free_port()

    @property
    def addresses_in_use(self) -> set[Address]:
        return {self.at}

    def known_address(self, shard: int) -> Address:
        return self.at

    def address(self, shard: int, wait: float) -> Address:
        return self.at

    def redirection(self, *_arguments: Any) -> None:
        return None


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many servers of this test were known to be away, whenever that has changed."""
    monkeypatch.setattr(breaker, "_breakers", WeakValueDictionary())
    monkeypatch.setattr(breaker, "_state_listeners", [])
    numbers: list[int] = []
    on_state_change(lambda: numbers.append(open_breakers()))
    return numbers


def lose(ask: Callable[[], Any], cluster: Any) -> None:
    """Ask a node until it is not asked any more, then another one that has taken over."""
    for _ in range(MAX_FAILURES):
        with pytest.raises(EngineUnavailable):
            ask()
    cluster.replace()
    with pytest.raises(EngineUnavailable):
        ask()


def test_no_thread_goes_on_probing_it(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it counted among those that are away."""
    monkeypatch.setattr(transport, "Thread", lambda **options: threading.Thread(**options | {"name": "of this test"}))
    cluster: Any = OneNode()
    nodes = ClusterTransport(ClientFactory((), {}), cluster, Handshake(CallEncoder("rl")), deadline=0.2)
    lose(lambda: nodes.call(0, PING), cluster)
    assert told == [1, 0]
    until(lambda: not [each for each in threading.enumerate() if each.name == "of this test"], "it has ended")


def test_no_task_goes_on_probing_it(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "CALLS_IN_THREADS", 0)
    cluster: Any = OneNode()
    with asyncio.Runner() as runner:
        threads = ClusterTransport(ClientFactory((), {}), cluster, Handshake(CallEncoder("rl")), deadline=0.2)
        nodes = AsyncClusterTransport(threads, max_connections=1)
        lose(lambda: runner.run(nodes.call(0, PING)), cluster)
        assert told == [1, 0]

        async def all_others_end() -> None:
            async with asyncio.timeout(20):
                while len(asyncio.all_tasks()) > 1:
                    await asyncio.sleep(0.01)

        runner.run(all_others_end())


class NotStarted:
    """A thread that runs nothing, and is never alive. started: all that were, in turn."""

    started: list[NotStarted]

    def __init__(self, **_given: Any) -> None:
        """Take what a thread takes."""

    def is_alive(self) -> bool:
        return False

    def start(self) -> None:
        self.started.append(self)


class Interrupted(Topology):
    """Has another request come in between a thread's being made and its being started."""

    is_alone = True

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_thread" and value is not None and self.is_alone:
            self.is_alone = False
            self.refresh_soon()


def test_no_thread_is_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "Thread", NotStarted)
    monkeypatch.setattr(NotStarted, "started", [], raising=False)
    Interrupted(ClientFactory((("127.0.0.1", 1),), {}), "rl", 4).refresh_soon()
    assert len(NotStarted.started) == len(set(NotStarted.started)) == 2


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
