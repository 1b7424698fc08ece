"""What processes say of themselves is kept for a while, by names that are computed, on one server and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread
from typing import Any

import pytest
import redis

from django_ratelimiter.engine.base import Version
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.commands import ShardCommands
from django_ratelimiter.engine.redis.heartbeats import PERIOD, RedisHeartbeats
from django_ratelimiter.engine.redis.protocol import CallEncoder
from django_ratelimiter.exceptions import EngineUnavailable
from tests.clusters import Cluster

Clock = Callable[[int], None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the time of the engine, in seconds."""
    return lambda seconds: monkeypatch.setattr(
        "django_ratelimiter.engine.redis.protocol.now", lambda: seconds * 1_000_000
    )


def test_the_latest_word_of_each_process_is_read_for_a_while(redis_client: redis.Redis, at: Clock) -> None:
    engine = RedisEngine(redis_client, namespace="test", deadline=60)
    assert engine.heartbeats.read() == ([None], 0, {})
    at(100 * PERIOD)
    engine.heartbeats.write("a", "first")
    engine.heartbeats.write("b", "é")
    engine.publish(Version(7, 3))
    at(101 * PERIOD - 1)
    engine.heartbeats.write("a", "second")
    assert engine.heartbeats.read() == ([Version(7, 3)], 0, {"a": "second", "b": "é"})
    at(101 * PERIOD + 1)
    engine.heartbeats.write("a", "third")
    assert engine.heartbeats.read().texts == {"a": "third", "b": "é"}
    at(102 * PERIOD)
    assert engine.heartbeats.read().texts == {"a": "third"}
    keys = redis_client.keys("*processes*")
    assert len(keys) == 2
    assert all(0 < redis_client.ttl(key) <= 3 * PERIOD for key in keys)


@pytest.mark.parametrize("decodes", [False, True])
def test_a_clients_own_way_reads_the_same(redis_url: str, decodes: bool) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=decodes) as client:
        engine = RedisEngine(client, namespace="test")
        heartbeats = RedisHeartbeats(ShardCommands(engine, lambda shard, command: command(client)))
        heartbeats.write("a", "é")
        engine.publish(Version(7, 3))
        assert heartbeats.read() == engine.heartbeats.read() == ([Version(7, 3)], 0, {"a": "é"})


def test_a_server_that_is_away_is_told(redis_client: redis.Redis) -> None:
    client = redis.Redis(port=1)
    with pytest.raises(EngineUnavailable):
        RedisEngine(client).heartbeats.write("a", "x")
    with pytest.raises(EngineUnavailable):
        RedisEngine(client).heartbeats.read()


def test_all_shards_of_a_cluster_are_read_in_one_pipeline_for_each_node(
    running_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_cluster.flush()
    client = LazyRedisCluster(running_cluster.urls[0])
    engine = RedisEngine(client, deadline=60)
    processes = [f"process-{number}" for number in range(20)]
    for process in processes:
        engine.heartbeats.write(process, "x")
    engine.publish(Version(7))
    key = engine.version_key(5)
    running_cluster.owner(key).ask("SET", key, "0:6")
    asked: list[object] = []
    execute = redis.client.Pipeline.execute

    def executed(self: Any, **options: Any) -> Any:
        asked.append(current_thread())
        return execute(self, **options)

    monkeypatch.setattr(redis.client.Pipeline, "execute", executed)
    found = engine.heartbeats.read()
    assert asked.count(current_thread()) == 3  # since the publication, another thread may read the topology
    assert sorted(found.texts) == sorted(processes)
    assert sorted(version.number for version in found.versions if version) == [6] + [7] * (engine.shards - 1)
    assert found.unanswered == 0
    client.close()


def test_a_node_that_is_away_costs_its_own_shards_alone(redis_client: redis.Redis) -> None:
    """Written to another node, and read of those that answer."""
    away = {0, 2}

    def run(shard: int, command: Callable[[redis.Redis], list[object]]) -> list[object]:
        if shard in away:
            raise EngineUnavailable("gone")
        return command(redis_client)

    heartbeats = RedisHeartbeats(ShardCommands(CallEncoder("test", shards=4), run, node_of=lambda shard: shard % 2))
    for process in "abcd":
        heartbeats.write(process, "x")
    found = heartbeats.read()
    assert (found.versions, found.unanswered) == ([None, None], 2)
    assert set(found.texts) == set("abcd")
    away |= {1, 3}
    with pytest.raises(EngineUnavailable):
        heartbeats.read()
    with pytest.raises(EngineUnavailable):
        heartbeats.write("a", "x")
