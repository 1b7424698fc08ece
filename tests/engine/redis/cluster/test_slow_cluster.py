"""A cluster at some distance: what takes many round trips is done all the same, and holds no decision up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from example_project.redis_server import HOST
from tests.clusters import Cluster, until
from tests.engine.slow import SlowProxy

ROUND_TRIP, DEADLINE = 0.005, 0.05
DAY = Charge("key", Limit(1_000, 86_400, "token_bucket"))


@pytest.fixture
def client(running_cluster: Cluster) -> Iterator[LazyRedisCluster]:
    """A client that reaches every server through a slow network."""
    running_cluster.flush()
    with ExitStack() as stack:
        proxies = {
            server.port: stack.enter_context(SlowProxy(server.port, ROUND_TRIP / 2))
            for server in running_cluster.servers
        }
        ports = {port: urlsplit(proxy.url).port or 0 for port, proxy in proxies.items()}
        client = LazyRedisCluster(
            f"redis://{HOST}:{ports[running_cluster.masters[0].port]}",
            address_remap=lambda address: (address[0], ports.get(address[1], address[1])),
        )
        yield client
        client.close()


def publishes(engine: Any) -> bool:
    try:
        engine.publish(1)
    except EngineUnavailable:
        return False
    return True


def test_rules_are_published(client: LazyRedisCluster, of_either_kind: Any) -> None:
    """To ask who serves what, and whether all agree on it, takes longer than a decision may wait."""
    engine = of_either_kind(RedisEngine(client, deadline=DEADLINE))
    until(lambda: publishes(engine), "it publishes")
    assert client.get("{rl:40}:version") == b"0:1"
