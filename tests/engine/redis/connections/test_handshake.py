"""A new connection drops a version that the server holds from before a restart or a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from django_ratelimiter.engine import Charge, Limit, StaleRules
from django_ratelimiter.engine.redis import AsyncRedisEngine, LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.connections.async_connection import AsyncConnection
from django_ratelimiter.engine.redis.connections.connection import (
    VERSION_DROP_INTERVAL,
    Connection,
    Pipeline,
    VersionDrop,
)
from django_ratelimiter.engine.redis.scripts import CHECK_SHA
from example_project.redis_server import HOST, free_port
from tests.clusters import Cluster, ServerWith, until
from tests.engine.redis.test_acl import allowed
from tests.engine.redis.test_async_engine import on_a_loop

DAY = Charge("key", Limit(1_000, 86_400, "token_bucket", burst=1_000))
VERSION = "{rl:0}:version"

Make = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ServerWith]:
    with ServerWith() as server:
        yield server


@pytest.fixture
def make(of_either_kind: Any) -> Iterator[Make]:
    """Makes an engine with connections of its own, as each process has one."""
    with ExitStack() as stack:

        def new(server: ServerWith, **options: Any) -> Any:
            client = redis.Redis(**options, host=HOST, port=server.port)
            return of_either_kind(RedisEngine(stack.enter_context(client), deadline=20.0))

        yield new


def is_told_of_none(engine: Any, version: int = 1) -> bool:
    """Whether it is told that the server holds no version."""
    try:
        engine.check([DAY], version=version)
    except StaleRules as stale:
        return stale.number is None
    return False


def test_a_process_that_joins_finds_the_version_of_the_others(server: ServerWith, make: Make) -> None:
    make(server).publish(1)
    assert not any(is_told_of_none(make(server)) for _ in range(5))


def test_nor_is_it_lost_to_those_who_join_after_a_flush(server: ServerWith, make: Make) -> None:
    engine = make(server)
    engine.publish(1)
    server.ask("FLUSHALL")
    assert is_told_of_none(engine)
    engine.publish(1)
    assert not any(is_told_of_none(each) for each in (engine, make(server), make(server)))


def test_more_connections_to_the_same_server_change_nothing(server: ServerWith) -> None:
    async def crowd(engine: AsyncRedisEngine) -> None:
        await engine.publish(1)
        await asyncio.gather(*(engine.check([DAY], version=1) for _ in range(200)))
        assert len(server.ask("CLIENT", "LIST").splitlines()) > 10

    on_a_loop(f"redis://127.0.0.1:{server.port}", crowd, deadline=20.0)


def test_a_master_that_was_a_replica_meanwhile_holds_none(server: ServerWith, make: Make) -> None:
    """It has its script still, and the same process."""
    make(server).publish(1)
    server.ask("REPLICAOF", HOST, free_port())
    server.ask("REPLICAOF", "NO", "ONE")
    assert server.ask("SCRIPT", "EXISTS", CHECK_SHA) == [1]
    engine = make(server)
    assert is_told_of_none(engine)
    engine.publish(1)
    assert not any(is_told_of_none(each) for each in (engine, make(server)))


def test_a_server_without_the_script_holds_none_for_who_is_connected_either(server: ServerWith, make: Make) -> None:
    """As behind a proxy, whose connections outlive the server: whoever comes first must not hide it from the others."""
    engines = [make(server) for _ in range(3)]
    engines[0].publish(1)
    assert not any(map(is_told_of_none, engines))
    server.ask("SCRIPT", "FLUSH")
    assert is_told_of_none(engines[1])
    assert all(map(is_told_of_none, engines))
    engines[2].publish(1)
    assert not any(map(is_told_of_none, engines))


def test_a_server_that_keeps_no_script_is_decided_on_once_its_version_is_published(
    server: ServerWith, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a proxy to several servers may be: the script is missing at each call."""
    now = [0.0]
    engine = make(server)
    set_clock(engine, lambda: now[0])
    for connection in (Connection, AsyncConnection):

        def forgetful(self: Any, *args: Any, ask: Any = connection.call, **options: Any) -> Any:
            server.ask("SCRIPT", "FLUSH")
            return ask(self, *args, **options)

        monkeypatch.setattr(connection, "call", forgetful)
    for _ in range(3):
        assert is_told_of_none(engine), "it may have lost more than the script"
        engine.publish(1)
        assert not any(is_told_of_none(engine) for _ in range(3))
        now[0] += VERSION_DROP_INTERVAL


def test_what_was_not_answered_has_forgotten_nothing() -> None:
    version_drop = VersionDrop(Pipeline(b"DEL", 1), clock=lambda: 5.0)
    sent = version_drop.due_commands()
    assert sent.replies == version_drop.due_commands().replies == 1
    version_drop.mark_sent(sent)
    assert version_drop.due_commands() == (b"", 0)


def set_clock(engine: Any, clock: Callable[[], float]) -> None:
    getattr(engine, "_engine", engine).server_of(0).version_drop.clock = clock


@pytest.mark.parametrize("rejected", [["-info"], ["-script|exists"], ["-info", "-script|exists"]])
def test_a_user_who_may_not_ask_notices_a_restart_by_the_script(rejected: list[str], make: Make) -> None:
    with ServerWith(appendonly="yes", appendfsync="always") as server:
        allowed(server, *rejected)
        user = {"username": "limiter", "password": "secret"}
        engine = make(server, **user)
        engine.publish(1)
        assert not is_told_of_none(make(server, **user))
        server.kill()
        server.start()
        allowed(server, *rejected)
        assert server.ask("GET", VERSION) == b"0:1"
        late = make(server, **user)
        assert is_told_of_none(late)
        late.publish(1)
        assert not is_told_of_none(make(server, **user))


def test_a_node_of_a_cluster_that_has_lost_its_script_forgets_all_its_shards(running_cluster: Cluster) -> None:
    running_cluster.flush()
    client = LazyRedisCluster(running_cluster.urls[0])
    engine = RedisEngine(client, deadline=20.0)
    engine.publish(1)
    charges = [DAY._replace(key=str(number)) for number in range(200)]
    assert not [each for each in charges if is_stale(engine, each)]
    loses = running_cluster.owner("{rl:5}")
    loses.ask("SCRIPT", "FLUSH")
    there = [each for each in charges if running_cluster.owner(f"{{rl:{engine.shard_of(each)}}}") is loses]
    with suppress(StaleRules):
        engine.check([there[0]], version=1)
    assert [each for each in charges if is_stale(engine, each)] == there
    engine.publish(1)
    until(lambda: not [each for each in charges if is_stale(engine, each)], "all hold it again")
    client.close()


def is_stale(engine: RedisEngine, charge: Charge) -> bool:
    try:
        engine.check([charge], version=1)
    except StaleRules:
        return True
    return False
