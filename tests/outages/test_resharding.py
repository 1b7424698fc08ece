"""Shards move from one node of a cluster to another under traffic through the whole stack of middleware.

No request fails, none waits longer than the deadline, and never is more admitted than the quota. A shard loses nothing,
and spends nothing for calls that it did not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.crc import key_slot

from example_project.redis_server import HOST
from tests.clusters import Cluster, ServerWith, until

from .bare_cluster import Places, in_use
from .conftest import MakeRule
from .stack import Waits, in_threads, on_an_event_loop, wait_for_all
from .test_failover import assert_exact, counted, lost_by_path

LAST, QUOTA = "/items/5/", 100
MOVES = 4
#: Keys that redis-cli moves in one step.
STEP = 10

Move = Callable[[Cluster, int, ServerWith, ServerWith], None]


def key_by_key(cluster: Cluster, slot: int, source: ServerWith, target: ServerWith) -> None:
    """As `redis-cli --cluster reshard` does."""
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))
    while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, STEP):
        source.ask("MIGRATE", HOST, target.port, "", 0, 1000, "KEYS", *keys)
    for server in (target, source):
        server.ask("CLUSTER", "SETSLOT", slot, "NODE", target.ask("CLUSTER", "MYID"))


def at_once(cluster: Cluster, slot: int, source: ServerWith, target: ServerWith) -> None:
    """As Valkey 9 can."""
    try:
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.ask("CLUSTER", "MYID"))
    except redis.ResponseError as error:
        if "unknown" not in str(error).lower():
            raise
        pytest.skip("This server moves slots key by key.")


@pytest.fixture
def places(bare_cluster: Cluster, make_rule: MakeRule) -> Iterator[Places]:
    yield from in_use(bare_cluster, make_rule)


@pytest.mark.once
@pytest.mark.parametrize("move", [key_by_key, at_once])
def test_shards_move(move: Move, bare_cluster: Cluster, places: Places, make_rule: MakeRule) -> None:
    make_rule(5, QUOTA, failure_policy="closed", partition_by=["ip"])
    key = places.server.ask("KEYS", "*:items-1:*")[0]
    slot = key_slot(key)
    before = counted()
    with in_threads(places.address) as threads, on_an_event_loop(places.address) as loop:
        both = threads, loop
        wait_for_all(both, threads.is_decided)
        for traffic in both:
            traffic.paths.append(LAST)
        waits = Waits(*both)
        for _ in range(MOVES):
            source = bare_cluster.owner(key)
            target = bare_cluster.servers[(bare_cluster.servers.index(source) + 1) % 3]
            move(bare_cluster, slot, source, target)
            until(lambda: all(bare_cluster.owner(key, by) is target for by in bare_cluster.servers), "all know it")  # noqa: B023
            wait_for_all(both, threads.is_decided)
        wait_for_all(both, lambda answers: any(answer.status == 429 for answer in answers))
    waits.assert_within_the_deadline()
    answers, unknown = [*threads.answers, *loop.answers], lost_by_path(*both)
    assert not [*threads.errors, *loop.errors]
    assert_exact([answer for answer in answers if answer.path == LAST], QUOTA, unknown[LAST])
    found = counted()
    for path, asked in Counter(answer.path for answer in answers).items():
        assert 0 <= found[path] - before.get(path, 0) - asked <= unknown[path], path
