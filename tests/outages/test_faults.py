"""Faults of Redis under traffic through the whole stack of middleware, in threads and on an event loop.

Of each kind one: Redis does not answer, is gone, has lost all, or is late; what else may be wrong with a server the
tests of the engine know. For each fault: no request fails (500), each is answered as its rule's failure policy says or
as Redis has decided, no decision waits longer than the deadline and 10 ms, and when the fault is over Redis decides
again by itself. Threads and event loop are at work at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import redis
from django.test.utils import override_settings

from example_project.redis_server import RedisServer
from tests.clusters import Cluster, stopped
from tests.engine.slow import SlowProxy

from .bare_cluster import Places, in_use
from .conftest import MakeRule
from .stack import (
    LIMITER,
    PATHS,
    Answer,
    Condition,
    Waits,
    assert_by_policy_or_redis,
    in_threads,
    make_rules,
    on_an_event_loop,
    wait_for_all,
)

#: What each fault is given to do its harm, and no longer than that.
FAULT_SECONDS = 0.5

Fault = Callable[["Stage"], Iterator[None]]


class Stage(NamedTuple):
    """What a fault is played on. control: a connection that is not taken for one of the limiter's."""

    server: RedisServer
    proxy: SlowProxy
    control: redis.Redis


def hung(stage: Stage) -> Iterator[None]:
    with stopped(stage.server):
        yield


def killed(stage: Stage) -> Iterator[None]:
    stage.server.kill()
    yield
    stage.server.start()


def flushed(stage: Stage) -> Iterator[None]:
    stage.control.flushall()
    yield
    stage.control.flushall()


def busy(stage: Stage) -> Iterator[None]:
    """Somebody's script does not end."""
    stage.control.config_set("busy-reply-threshold", 100)

    def run() -> None:
        with redis.Redis.from_url(stage.server.url) as other, contextlib.suppress(redis.RedisError):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stage.control.script_kill()
    thread.join()


def slow(stage: Stage) -> Iterator[None]:
    stage.proxy.seconds = 0.015
    yield
    stage.proxy.seconds = 0.0


#: With whether Redis goes on deciding meanwhile.
FAULTS: dict[Fault, bool] = {
    hung: False,
    killed: False,
    flushed: True,
    busy: False,
    slow: True,
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with RedisServer() as server, SlowProxy(server.port, 0.0) as proxy, redis.Redis.from_url(server.url) as control:
        yield Stage(server, proxy, control)


@pytest.fixture
def rules(make_rule: MakeRule, stage: Stage) -> Iterator[None]:
    make_rules(make_rule)
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": stage.proxy.url}
    with override_settings(CACHES={"default": cache, "ratelimit": cache}, RATELIMITER=LIMITER):
        yield


def shows(answers: list[Answer]) -> bool:
    """Whether Redis has not decided one of them."""
    return any(answer.status == 503 for answer in answers)


def play(
    fault: Fault,
    stage: Stage,
    *addresses: str,
    decides: bool,
    shows: Condition = shows,
    others: Condition | None = None,
) -> None:
    """Let a fault come and go. decides: whether Redis goes on; shows: what is waited for if not; others: beside it."""
    with in_threads(*addresses) as threads, on_an_event_loop(*addresses) as loop, ExitStack() as undone:
        both = threads, loop
        wait_for_all(both, threads.is_decided)
        waits = Waits(*both)
        undone.enter_context(contextmanager(fault)(stage))
        wait_for_all(both, threads.is_decided if decides else shows)
        time.sleep(FAULT_SECONDS)
        if others:
            wait_for_all(both, others)
        undone.close()
        wait_for_all(both, threads.is_decided)
    for traffic in both:
        assert_by_policy_or_redis(traffic)
    waits.assert_within_the_deadline()


@pytest.mark.once
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault(fault: Fault, stage: Stage, rules: None) -> None:
    play(fault, stage, decides=FAULTS[fault])


# One node of a cluster: requests that are counted by other nodes go on being decided

#: Requests for each path that are to be decided by other nodes meanwhile.
OTHERS = 10


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
@pytest.mark.parametrize("fault", [hung, killed], ids=lambda fault: fault.__name__)
def test_fault_of_one_node(fault: Fault, nodes: ClusterTransport, places: Places) -> None:
    def goes_on(answers: list[Answer]) -> bool:
        decided = [each.path for each in answers if each.by_redis and each.address == places.other]
        return all(decided.count(path) >= OTHERS for path in PATHS)

    def shows(answers: list[Answer]) -> bool:
        return any(answer.status == 503 and answer.address == places.address for answer in answers)

    with places.server.client() as control:
        stage = Stage(places.server, nodes.proxies[places.server.port], control)
        addresses = places.address, places.other
        play(fault, stage, *addresses, decides=False, shows=shows, others=goes_on)
