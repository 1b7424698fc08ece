"""A cluster behind a slow network, of which a part may be silent: what it takes to reach all, and whom to reach."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import pytest

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from example_project.redis_server import HOST
from tests.clusters import Cluster, until
from tests.engine.slow import SlowProxy

#: A deadline that a busy machine keeps, and one that is waited for where a node is silent.
ROUND_TRIP, LONG, SHORT = 0.01, 60.0, 0.5


class Far:
    """A cluster behind a slow network. proxies: by the port of the server behind."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self.proxies = {
            server.port: stack.enter_context(SlowProxy(server.port, ROUND_TRIP / 2)) for server in cluster.servers
        }
        self._ports = {port: urlsplit(proxy.url).port or 0 for port, proxy in self.proxies.items()}
        self.client = LazyRedisCluster(
            f"redis://{HOST}:{self._ports[cluster.masters[0].port]}",
            address_remap=lambda address: (address[0], self._ports.get(address[1], address[1])),
        )
        stack.callback(self.client.close)

    def owner(self, shard: int) -> SlowProxy:
        return self.proxies[self.cluster.owner(f"{{rl:{shard}}}").port]

    def held(self) -> list[bytes | None]:
        """The version that each shard holds."""
        return [self._asked(shard) for shard in range(64)]

    def _asked(self, shard: int) -> bytes | None:
        found: bytes | None = self.cluster.owner(f"{{rl:{shard}}}").ask("GET", f"{{rl:{shard}}}:version")
        return found


def charge(shard: int) -> Charge:
    """A charge that lies in a shard."""
    key = next(key for key in map(str, range(10_000)) if crc32(key.encode()) % 64 == shard)
    return Charge(key, Limit(5, 86_400, "token_bucket"))


def remaining(engine: Any, *charges: Charge) -> list[int] | None:
    with suppress(EngineUnavailable):
        return [verdict.remaining for verdict in engine.peek(charges)]
    return None


@pytest.fixture
def far(running_cluster: Cluster) -> Iterator[Far]:
    running_cluster.flush()
    with ExitStack() as stack:
        yield Far(running_cluster, stack)


@pytest.fixture
def deadline() -> float:
    return LONG


@pytest.fixture
def engine(of_either_kind: Any, far: Far, deadline: float) -> Any:
    """The engine of either kind; it has published a version, and so has connections."""
    engine = of_either_kind(RedisEngine(far.client, deadline=deadline))
    until(lambda: publishes(engine, 1), "it publishes")
    return engine


def publishes(engine: Any, version: int) -> bool:
    return unreached(engine, version) == 0


def unreached(engine: Any, version: int) -> int:
    """The number of shards that the version could not be published in."""
    try:
        engine.publish(version)
    except EngineUnavailable as error:
        found = re.match(r"(\d+) of 64 shards could not be reached: ", str(error))
        return int(found[1]) if found else 64
    return 0


@pytest.mark.parametrize("deadline", [5 * ROUND_TRIP])
def test_a_version_is_published_though_it_takes_longer_than_a_decision_may_wait(far: Far, engine: Any) -> None:
    """To ask who serves what, and whether all agree on it, takes many round trips."""
    assert far.held() == [b"0:1"] * 64


def test_all_shards_of_a_node_are_told_in_one_round_trip(far: Far, engine: Any) -> None:
    before = {port: proxy.script_turns for port, proxy in far.proxies.items()}
    engine.publish(2)
    turns = [proxy.script_turns - before[port] for port, proxy in far.proxies.items()]
    assert sorted(turns) == [0, 0, 0, 1, 1, 1]
    assert far.held() == [b"0:2"] * 64


def test_lost_scripts_are_loaded_on_the_way(far: Far, engine: Any) -> None:
    for server in far.cluster.servers:
        server.ask("SCRIPT", "FLUSH")
    before = sum(proxy.script_turns for proxy in far.proxies.values())
    engine.publish(2)
    assert sum(proxy.script_turns for proxy in far.proxies.values()) - before == 3


@pytest.mark.once
@pytest.mark.parametrize("deadline", [SHORT])
def test_a_node_that_does_not_answer_keeps_nobody_else_from_the_number(far: Far, engine: Any) -> None:
    hung = far.owner(3)
    missed = {shard for shard in range(64) if far.owner(shard) is hung}
    hung.silent = True
    for version in range(2, 6):  # the last one while the node is not asked any more
        # On a busy machine, other nodes may also be late at first.
        until(lambda: unreached(engine, version) == len(missed), "all others are told")  # noqa: B023
        assert {shard for shard, held in enumerate(far.held()) if held != b"0:%d" % version} == missed
    hung.silent = False
    until(lambda: publishes(engine, version), "it has come back")
    assert far.held() == [b"0:5"] * 64


@pytest.mark.parametrize("deadline", [SHORT])
def test_no_shard_is_asked_in_vain_if_the_node_of_a_later_one_is_known_to_be_away(far: Far, engine: Any) -> None:
    """What was spent there would have to be given back."""
    first, last = charge(9), charge(40)
    near, hung = far.owner(9), far.owner(40)
    assert near is not hung
    hung.silent = True
    for _ in range(MAX_FAILURES):
        assert not remaining(engine, last)
    until(lambda: remaining(engine, first), "the other is asked, however busy the machine was")
    before = near.script_turns
    with pytest.raises(EngineUnavailable, match="not called at present"):
        engine.check([first, last])
    assert near.script_turns == before
    hung.silent = False
    assert until(lambda: remaining(engine, first, last), "it has come back") == [5, 5]


def test_a_task_that_is_cancelled_between_two_shards_leaves_nothing_spent(far: Far) -> None:
    """But for what the shard has done that was being asked."""
    first, last = charge(9), charge(40)
    near, hung = far.owner(9), far.owner(40)
    twin = RedisEngine(far.client, deadline=LONG).to_async()
    assert twin is not None

    async def reach(proxy: SlowProxy, turns: int) -> None:
        async with asyncio.timeout(LONG):
            while proxy.script_turns < turns:
                await asyncio.sleep(0.001)

    async def use() -> list[int]:
        await twin.peek([first, last])
        hung.silent, turns = True, (near.script_turns, hung.script_turns)
        asking = asyncio.ensure_future(twin.check([first, last]))
        await reach(hung, turns[1] + 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert near.script_turns == turns[0] + 2
        hung.silent = False
        left = [(await twin.peek([each]))[0].remaining for each in (first, last)]
        await twin.aclose()
        return left

    assert asyncio.run(use()) == [5, 5]


def test_a_task_that_is_cancelled_while_shards_give_back_has_all_of_them_do_so(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    charges = [charge(shard) for shard in (9, 20, 40)]
    twin = RedisEngine(far.client, deadline=LONG).to_async()
    assert twin is not None
    assert twin._cluster is not None
    ask = twin._cluster.call
    turns: list[int] = []
    checking: list[asyncio.Task[object]] = []

    async def asking(shard: int, *arguments: Any) -> Any:
        turns.append(shard)
        if shard == 40:
            raise EngineUnavailable("lost")
        if len(turns) == 4:  # the first that gives back
            checking[0].cancel()
        return await ask(shard, *arguments)

    async def use() -> list[int]:
        await twin.peek(charges)
        monkeypatch.setattr(twin._cluster, "call", asking)
        checking.append(asyncio.create_task(twin.check(charges)))
        with pytest.raises(asyncio.CancelledError):
            await checking[0]
        monkeypatch.undo()
        left = [verdict.remaining for verdict in await twin.peek(charges)]
        await twin.aclose()
        return left

    assert asyncio.run(use()) == [5, 5, 5]
    assert turns == [9, 20, 40, 9, 20]
