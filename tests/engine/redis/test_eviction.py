"""Whether any server of an engine drops keys when its memory is full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.checks.eviction import evicting
from tests.clusters import Cluster


@pytest.fixture
def engine(running_cluster: Cluster) -> Iterator[RedisEngine]:
    client = LazyRedisCluster(running_cluster.urls[0])
    yield RedisEngine(client, "eviction", shards=16, deadline=60)
    client.close()


def test_one_master_of_a_cluster_that_does(engine: RedisEngine, running_cluster: Cluster) -> None:
    assert evicting(engine) == set()
    for master in running_cluster.masters:
        master.ask("CONFIG", "SET", "maxmemory", "100mb")
    try:
        assert evicting(engine) == set()
        running_cluster.masters[1].ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        assert evicting(engine) == {"volatile-lru"}
    finally:
        for master in running_cluster.masters:
            master.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
