"""Three masters without replicas that keep their data, and the settings by which the limiter counts on them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from django.test import Client
from django.test.utils import override_settings

from tests.clusters import Cluster, ServerWith, until

from .conftest import MakeRule
from .stack import LIMITER, make_rules


class Places(NamedTuple):
    """An address whose requests are counted by `server`, and one whose requests are counted by another one."""

    server: ServerWith
    address: str
    other: str


def alias(cluster: Cluster, **client: Any) -> dict[str, Any]:
    """An entry of CACHES. client: further options of the client."""
    return cluster.alias(SOCKET_TIMEOUT=0.3, SOCKET_CONNECT_TIMEOUT=0.3, REDIS_CLIENT_KWARGS=client)


def in_use(cluster: Cluster, make_rule: MakeRule, **client: Any) -> Iterator[Places]:
    """Let the limiter count on this cluster, which holds nothing yet, by the rules of PATHS."""
    cluster.revive()
    cluster.flush()
    cache = alias(cluster, **client)
    with override_settings(CACHES={"default": cache, "ratelimit": cache}, RATELIMITER=LIMITER):
        make_rules(make_rule)
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
