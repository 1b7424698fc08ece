"""Questions to a server: a dry decision, which leaves nothing there, and whether it drops keys when it is full."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis

from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine, protocol
from django_ratelimiter.engine.redis.checks import dry_run, evicting
from django_ratelimiter.exceptions import EngineUnavailable
from example_project.redis_server import free_port
from tests.clusters import Cluster


def test_it_leaves_nothing_and_touches_nothing_of_ours(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client, "dry")
    engine.publish(7)
    dry_run(engine)
    assert redis_client.keys("{dry*") == [b"{dry:0}:version"]
    assert redis_client.get("{dry:0}:version") == b"0:7"


@pytest.mark.parametrize("clock", ["server", "client"])
@pytest.mark.parametrize("minutes", [-10, 1, 2, 10])
def test_our_clock_may_differ_from_the_servers(
    minutes: int, clock: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = protocol.now
    monkeypatch.setattr(protocol, "now", lambda: real() + minutes * 60_000_000)
    dry_run(RedisEngine(redis_client, "dry", clock=clock))
    assert redis_client.keys("{dry*") == []


def test_nothing_is_left_of_what_was_counted_wrongly(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a batch, whose name only the server knows."""
    engine = RedisEngine(redis_client, "dry")
    monkeypatch.setattr(RedisEngine, "read_usage", lambda self, batch: [])
    with pytest.raises(EngineUnavailable, match="counts are wrong"):
        dry_run(engine)
    assert redis_client.keys("{dry*") == []


def test_each_node_of_a_cluster_is_asked(running_cluster: Cluster) -> None:
    running_cluster.flush()
    for server in running_cluster.masters:
        server.ask("CONFIG", "RESETSTAT")
    client = LazyRedisCluster(running_cluster.urls[0])
    dry_run(RedisEngine(client, "dry"))
    client.close()
    for server in running_cluster.masters:
        (calls,) = re.findall(rb"cmdstat_evalsha:calls=(\d+)", server.ask("INFO", "commandstats"))
        assert 3 <= int(calls) <= 6, "once, and not for each shard"
        assert [key for key in server.ask("KEYS", "*") if not key.endswith(b":shards")] == []


def test_a_server_that_is_away_is_no_fault() -> None:
    with redis.Redis(port=free_port(), retry=None) as client, pytest.raises(EngineUnavailable):
        dry_run(RedisEngine(client, "dry"))


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
