"""What can happen to one node of a cluster, under traffic through the whole stack of middleware.

As in `test_faults`; and requests that are counted by other nodes go on being decided. Threads and event loop are at
work at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.clusters import Cluster
from tests.engine.slow import SlowProxy

from .bare_cluster import Places, in_use
from .conftest import MakeRule
from .stack import PATHS, Answer, Waits, assert_by_policy_or_redis, in_threads, on_an_event_loop, wait_for_all
from .test_faults import FAULT_SECONDS, FAULTS, Fault, Stage, made_a_replica

#: Requests for each path that are to be decided by other nodes meanwhile.
OTHERS = 10


def without_replicas(stage: Stage) -> Iterator[None]:
    """A node that may not write, as it has too few replicas; a master of a cluster cannot be made one itself."""
    stage.control.config_set("min-replicas-to-write", 1)
    yield
    stage.control.config_set("min-replicas-to-write", 0)


NODE_FAULTS: dict[Fault, bool] = {**FAULTS, without_replicas: False}
del NODE_FAULTS[made_a_replica]


class ClusterTransport(NamedTuple):
    """A cluster behind proxies, by the port of each node."""

    cluster: Cluster
    proxies: dict[int, SlowProxy]

    def proxied(self, address: tuple[str, int]) -> tuple[str, int]:
        """Where the node that the cluster names is reached."""
        host, port = address
        return (host, urlsplit(self.proxies[port].url).port or 0) if port in self.proxies else address


@pytest.fixture(scope="module")
def nodes(bare_cluster: Cluster) -> Iterator[ClusterTransport]:
    with ExitStack() as stack:
        proxies = {server.port: stack.enter_context(SlowProxy(server.port, 0.0)) for server in bare_cluster.servers}
        yield ClusterTransport(bare_cluster, proxies)


@pytest.fixture
def places(nodes: ClusterTransport, make_rule: MakeRule) -> Iterator[Places]:
    yield from in_use(nodes.cluster, make_rule, address_remap=nodes.proxied)


@pytest.mark.once
@pytest.mark.parametrize("fault", NODE_FAULTS, ids=lambda fault: fault.__name__)
def test_fault_of_one_node(fault: Fault, nodes: ClusterTransport, places: Places) -> None:
    def goes_on(answers: list[Answer]) -> bool:
        decided = [each.path for each in answers if each.by_redis and each.address == places.other]
        return all(decided.count(path) >= OTHERS for path in PATHS)

    def shows(answers: list[Answer]) -> bool:
        return any(answer.status == 503 and answer.address == places.address for answer in answers)

    addresses = places.address, places.other
    with in_threads(*addresses) as threads, on_an_event_loop(*addresses) as loop, ExitStack() as undone:
        both = threads, loop
        wait_for_all(both, threads.is_decided)
        waits = Waits(*both)
        control = undone.enter_context(places.server.client())
        undone.enter_context(contextmanager(fault)(Stage(places.server, nodes.proxies[places.server.port], control)))
        wait_for_all(both, threads.is_decided if NODE_FAULTS[fault] else shows)
        time.sleep(FAULT_SECONDS)
        wait_for_all(both, goes_on)
        undone.close()
        wait_for_all(both, threads.is_decided)
    for traffic in both:
        assert_by_policy_or_redis(traffic)
    waits.assert_within_the_deadline()
