"""A server comes back with an older version of the rules: an idle process decides its first request by the latest.

The process knows version N, and so does what the server comes back with; N + 1 is committed and was published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import redis
from django.db import connection as database
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext, override_settings
from redis.sentinel import Sentinel

from django_ratelimiter import limiter
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.models import Rule
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import versions
from example_project.redis_server import HOST
from tests.clusters import BACKEND, ServerWith, Watched, until

from .conftest import MakeRule

OLD, NEW = 100, 7


class SetUp(NamedTuple):
    """Servers. other: another process's engine. lose: what makes them come back with what they held when `keep` ran."""

    alias: dict[str, Any]
    other: RedisEngine
    keep: Callable[[], object]
    lose: Callable[[], object]


def restored_dump(stack: ExitStack) -> SetUp:
    server = stack.enter_context(ServerWith(save=""))

    def lose() -> None:
        server.kill()
        server.start()

    other = RedisEngine(stack.enter_context(redis.Redis.from_url(server.url)))
    return SetUp({"BACKEND": BACKEND, "LOCATION": server.url}, other, lambda: server.ask("SAVE"), lose)


def cut_off(master: ServerWith, replica: ServerWith) -> None:
    """Have a replica hear nothing more of its master, however often it asks."""
    replica.ask("CONFIG", "SET", "masteruser", "nobody")
    replica.ask("CONFIG", "SET", "masterauth", "wrong")
    master.ask("CLIENT", "KILL", "TYPE", "replica")
    until(lambda: replica.ask("ROLE")[3] != b"connected", "the replica is cut off")


def failed_over_by_sentinel(stack: ExitStack) -> SetUp:
    watched = stack.enter_context(Watched())
    master, replica = watched.servers

    def keep() -> None:
        until(lambda: has_all_of(master, replica), "the replica has all")
        cut_off(master, replica)

    def lose() -> None:
        master.kill()
        until(lambda: watched.settled is replica, "the replica has taken over")

    client = Sentinel([(HOST, watched.sentinels[0].port)], socket_timeout=60).master_for(watched.name)
    return SetUp(watched.alias(), RedisEngine(stack.enter_context(client)), keep, lose)


def has_all_of(master: ServerWith, replica: ServerWith) -> bool:
    return bool(master.ask("ROLE")[1] == replica.ask("ROLE")[4])


@pytest.fixture(params=[restored_dump, failed_over_by_sentinel], ids=lambda made: made.__name__)
def set_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SetUp]:
    monkeypatch.setattr("django_redis.pool.ConnectionFactory._pools", {})
    with ExitStack() as stack:
        made: SetUp = request.param(stack)
        caches = dict.fromkeys(("default", "ratelimit"), made.alias)
        stack.enter_context(override_settings(CACHES=caches, RATELIMITER={"CACHE_ALIAS": "ratelimit"}))
        yield made


def in_a_thread(stack: ExitStack) -> Callable[[], Any]:
    return lambda: limiter.check(request())


def on_an_event_loop(stack: ExitStack) -> Callable[[], Any]:
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    stack.callback(lambda: loop.run_until_complete(loop.shutdown_default_executor()))
    stack.callback(lambda: loop.run_until_complete(loop.shutdown_asyncgens()))

    async def decide() -> Any:
        await asyncio.sleep(0.05)  # it hears of what has happened meanwhile, as one that is running has
        return await limiter.acheck(request())

    return lambda: loop.run_until_complete(decide())


def request() -> Any:
    return RequestFactory().get("/items/1/", REMOTE_ADDR="203.0.113.1")


def decided_by(decision: Any) -> int:
    """The quota that a decision of Redis was made by."""
    assert not decision.degraded
    (result,) = decision.results
    return int(result.limit.quota)


def edit_elsewhere(rule: Rule, other: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit and publish a new version in what stands for another process."""
    worker = cache._state
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_state", cache._State())
        patch.setattr(versions, "get_engine", lambda: other)
        with cache.editing():
            rule.limits.update(quota=NEW)
    assert not cache.last_publish_failed()
    assert cache._state is worker
    assert not worker.outdated


@pytest.mark.once
@pytest.mark.parametrize("way", [in_a_thread, on_an_event_loop])
def test_the_first_decision_is_by_the_latest_rules(
    way: Callable[[ExitStack], Callable[[], Any]],
    set_up: SetUp,
    make_rule: MakeRule,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        decide = way(stack)
        rule = make_rule(1, OLD, partition_by=["ip"])
        until(lambda: not limiter.check(request()).degraded, "Redis decides")
        assert decided_by(decide()) == OLD
        set_up.keep()
        edit_elsewhere(rule, set_up.other, monkeypatch)
        set_up.lose()
        assert decided_by(decide()) == NEW
        with CaptureQueriesContext(database) as queries:
            assert [decided_by(decide()) for _ in range(10)] == [NEW] * 10
        assert not queries.captured_queries
