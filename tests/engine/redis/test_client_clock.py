"""Decisions by this process's clock: no server is asked for the time, in threads, on event loops or over shards."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
import redis.asyncio

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.redis import AsyncRedisEngine, LazyRedisCluster, RedisEngine
from example_project.redis_server import RedisServer
from tests.clusters import Cluster, ServerWith

CHARGES = [
    Charge("a", Limit(2, 60), usage="a|", partition="a"),
    Charge("b", Limit(2, calendar="year", algorithm="fixed_window"), usage="b|", partition="b"),
]


def asked_for_time(server: RedisServer | ServerWith) -> bool:
    with redis.Redis(port=server.port) as client:
        return "cmdstat_time" in client.info("commandstats")


def test_a_server_is_not_asked(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client, clock="client")
        engine.publish(1)
        began = time.time_ns() // 1_000
        verdicts = [engine.check(CHARGES, version=1) for _ in range(3)]
        assert [all(verdict.allowed for verdict in each) for each in verdicts] == [True, True, False]
        assert began <= verdicts[0][0].at_us <= verdicts[2][0].at_us <= time.time_ns() // 1_000
        assert engine.peek(CHARGES)[0].remaining == 0
        engine.refund(verdicts[0])
        engine.take_usage()
        assert engine.partitions.now_us() >= began
    assert not asked_for_time(server)


def test_nor_is_it_on_an_event_loop(server: RedisServer) -> None:
    async def decide() -> list[bool]:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            engine = AsyncRedisEngine(client, clock="client")
            await engine.publish(1)
            verdicts = [await engine.check(CHARGES, version=1) for _ in range(3)]
            await engine.refund(verdicts[0])
            await engine.aclose()
            return [verdict.allowed for each in verdicts for verdict in each]

    assert asyncio.run(decide()) == [True, True, True, True, False, False]
    assert not asked_for_time(server)


def test_the_twin_for_event_loops_has_the_same_clock(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        twin: Any = RedisEngine(client, clock="client").to_async()
        assert twin.clock == "client"


def test_nor_is_a_cluster(running_cluster: Cluster) -> None:
    running_cluster.flush()
    for node in running_cluster.servers:
        node.ask("CONFIG", "RESETSTAT")
    client = LazyRedisCluster(running_cluster.urls[0])
    engine = RedisEngine(client, shards=8, clock="client")
    engine.publish(1)
    allowed = [verdict.allowed for _ in range(3) for verdict in engine.check(CHARGES, version=1)]
    assert allowed == [True, True, True, True, False, False]
    engine.take_usage()
    client.close()
    assert not any(asked_for_time(node) for node in running_cluster.servers)
    running_cluster.flush()


def test_there_is_no_other_clock(redis_client: redis.Redis) -> None:
    with pytest.raises(ValueError, match="clock: must be one of server, client, not 'sundial'"):
        RedisEngine(redis_client, clock="sundial")
