"""Three masters without replicas that keep their data, and the settings by which the limiter counts on them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from django.test import Client
from django.test.utils import override_settings

from example_project.redis_server import HOST
from tests.clusters import Cluster, ServerWith, until

from .conftest import MakeRule
from .stack import LIMITER, PATHS, WIDE


class Places(NamedTuple):
    """An address whose requests are counted by `server`, and one whose requests are counted by another one."""

    server: ServerWith
    address: str
    other: str


def alias(cluster: Cluster, **client: Any) -> dict[str, Any]:
    """An entry of CACHES. client: further options of the client."""
    options = {
        "CONNECTION_FACTORY": "django_ratelimiter.redis_cluster.ConnectionFactory",
        "STARTUP_NODES": [(HOST, server.port) for server in cluster.servers],
        "SOCKET_TIMEOUT": 0.3,
        "SOCKET_CONNECT_TIMEOUT": 0.3,
        "REDIS_CLIENT_KWARGS": client,
    }
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": cluster.urls[0], "OPTIONS": options}


def in_use(cluster: Cluster, make_rule: MakeRule, **client: Any) -> Iterator[Places]:
    """Let the limiter count on this cluster, which holds nothing yet, by the rules of PATHS."""
    cluster.revive()
    cluster.flush()
    cache = alias(cluster, **client)
    with override_settings(CACHES={"default": cache, "ratelimit": cache}, RATELIMITER=LIMITER):
        for number, policy in enumerate(PATHS.values(), 1):
            algorithm = "concurrency" if number == 4 else "token_bucket"
            make_rule(number, WIDE if number != 4 else 1_000, algorithm, failure_policy=policy, partition_by=["ip"])
        yield _places(cluster)


def _places(cluster: Cluster) -> Places:
    client, first, server = Client(), "", None
    for address in (f"203.0.113.{number}" for number in count(1)):
        asked = {"X-Forwarded-For": address}
        until(lambda: "RateLimit" in client.get("/items/1/", headers=asked), "it is counted by Redis")  # noqa: B023
        holders = [each for each in cluster.masters if each.ask("KEYS", "*:items-1:*")]
        if server is None:
            (server,), first = holders, address
        elif len(holders) > 1:
            return Places(server, first, address)
    raise AssertionError
