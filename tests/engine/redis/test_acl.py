"""A user that may do what the documentation lists, and nothing else, is enough."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit
from django_ratelimiter.engine.base import Version
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.usage import UsageCarry
from tests.clusters import Cluster, ServerWith, until

PAGE = (Path(__file__).parents[3] / "docs/howto/bigger-sites.md").read_text()
(RULE,) = re.findall(r"^ACL SETUSER limiter (.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def allowed(server: ServerWith, *further: str) -> None:
    """Make the documented user. further: what else it may do."""
    server.ask("ACL", "SETUSER", "limiter", "reset", *RULE.split(), *further)


def use(engine: RedisEngine) -> None:
    """Ask everything of an engine that it can do."""
    engine.publish(3)
    charges = [
        Charge(algorithm, Limit(4, 3_600, algorithm), usage=f"{algorithm}|", count_refusals=True)
        for algorithm in Algorithm
    ]
    for _ in range(6):
        engine.check(charges, version=3)
    engine.check([Charge(charges[4].key, Limit(1, 3_600, "token_bucket"))])
    held = UsageCarry("id", ((int(time.time()) // 60, "held|\nA", 1),))
    verdicts = engine.check([charge._replace(key=f"another {charge.key}") for charge in charges], counts=held)
    engine.peek(charges)
    engine.release(verdicts)
    engine.refund(verdicts)
    engine.reset(charges)
    assert engine.recent_rejections()
    engine.note_proxy("x")
    assert engine.proxies() == ["x"]
    assert set(engine.versions()) == {Version(3)}
    batches = engine.take_usage(now_us=int(time.time() * 1e6) + 120_000_000)
    assert {count.label for batch in batches for count in engine.read_usage(batch)} >= {"held|", "gcra|"}
    for batch in batches:
        engine.drop_usage(batch)
    twin: Any = engine.to_async()

    async def use_the_twin() -> None:
        await twin.check(charges, version=3)
        await twin.publish(4)
        await twin.reset(charges)
        await twin.aclose()

    asyncio.run(use_the_twin())


def rejected(server: ServerWith) -> set[bytes]:
    """The commands that somebody was rejected, but for one with which redis-py introduces itself."""
    return {dict(zip(entry[::2], entry[1::2], strict=True))[b"object"] for entry in server.ask("ACL", "LOG")} - {
        b"client|setinfo"
    }


@pytest.fixture
def own_server() -> Iterator[ServerWith]:
    with ServerWith() as server:
        yield server


def test_the_listed_commands_are_enough(own_server: ServerWith) -> None:
    allowed(own_server)
    with redis.Redis(port=own_server.port, username="limiter", password="secret") as client:
        use(RedisEngine(client, deadline=60))
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("somebody else's")
    assert rejected(own_server) == {b"somebody else's"}


def test_they_are_enough_to_be_found_again(own_server: ServerWith) -> None:
    """What looks whether a server is back is a user like any other."""
    allowed(own_server)
    with redis.Redis(port=own_server.port, username="limiter", password="secret") as client:
        engine = RedisEngine(client, deadline=60)
        engine.check([])
        own_server.ask("ACL", "SETUSER", "limiter", "off")
        own_server.ask("CLIENT", "KILL", "USER", "limiter")
        until(lambda: not answers(engine), "it is out of reach")
        own_server.ask("ACL", "SETUSER", "limiter", "on")
        until(lambda: answers(engine), "it is asked again")
    assert rejected(own_server) <= {b"AUTH", b"auth"}


def answers(engine: RedisEngine) -> bool:
    try:
        engine.check([])
    except Exception:
        return False
    return True


def test_on_a_cluster_two_more_are_needed(running_cluster: Cluster) -> None:
    running_cluster.flush()
    for server in running_cluster.servers:
        allowed(server, "+cluster|slots", "+asking")
        server.ask("ACL", "LOG", "RESET")
    client = LazyRedisCluster(running_cluster.urls[0], username="limiter", password="secret")
    use(RedisEngine(client, deadline=60))
    client.close()
    assert set().union(*map(rejected, running_cluster.servers)) == set()
    assert "`+cluster|slots +asking`" in PAGE


def test_every_command_of_the_scripts_is_listed() -> None:
    folder = files("django_ratelimiter.engine")
    scripts = [*folder.joinpath("redis").iterdir(), *folder.joinpath("algorithms").iterdir()]
    source = "".join(script.read_text() for script in scripts if script.name.endswith(".lua"))
    called = {name.lower() for name in re.findall(r"call\('(\w+)'", source)}
    assert {f"+{name}" for name in called} <= set(RULE.split())
