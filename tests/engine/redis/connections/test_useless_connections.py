"""Connections that are made and of no use: the breaker opens, nobody waits, and it closes when the server is well.

Waits and calls are counted, not timed: how long a busy machine takes says nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from django_ratelimiter.engine.redis.connections.async_transport import AsyncConnectionPool
from django_ratelimiter.engine.redis.connections.faults import is_outage, sentence_of
from django_ratelimiter.engine.redis.connections.transport import ConnectionPool
from example_project.redis_server import HOST, free_port
from tests.clusters import ServerWith
from tests.engine.answering import Answering
from tests.engine.conftest import Blocking
from tests.engine.redis.test_deadline import wait_until

DAY = Charge("key", Limit(1_000, 86_400, "token_bucket", burst=1_000))
#: Longer than any hiccup of a busy machine: who waits for it has not been told of the fault.
LONG = 20.0
WAYS = "threads", "event loops"

#: What begins each fault, what ends it, and what the log says of it.
FAULTS: dict[str, tuple[list[str], list[str], str]] = {
    "a password": (["CONFIG SET requirepass secret"], ["CONFIG SET requirepass ''"], "requires another password"),
    "no EVALSHA": (["ACL SETUSER default -evalsha"], ["ACL SETUSER default +evalsha"], "may not run a command"),
    "no SCRIPT": (
        ["ACL SETUSER default -script|load", "SCRIPT FLUSH"],
        ["ACL SETUSER default +@all"],
        "may not run a command",
    ),
    "no keys": (["ACL SETUSER default resetkeys ~other:*"], ["ACL SETUSER default allkeys"], "may not run a command"),
    "no SET in scripts": (["ACL SETUSER default -set"], ["ACL SETUSER default +set"], "may not run a command"),
    "maxclients": (
        ["CONFIG SET maxclients 1"],
        ["CONFIG SET maxclients 1000"],
        "maxclients|lost|closed|reset",
    ),  # what was heard before the end
    "a replica": ([f"REPLICAOF {HOST} {free_port()}"], ["REPLICAOF NO ONE"], "read-only replica"),
    "full": (["CONFIG SET maxmemory 1"], ["CONFIG SET maxmemory 0"], "memory is full"),
    "too few replicas": (
        ["CONFIG SET min-replicas-to-write 1"],
        ["CONFIG SET min-replicas-to-write 0"],
        "too few replicas",
    ),
}


@pytest.fixture
def server() -> Iterator[ServerWith]:
    with ServerWith() as server:
        yield server


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often calls have waited for a connection."""
    counts: Counter[str] = Counter()
    for pool in (ConnectionPool, AsyncConnectionPool):

        def counting(self: Any, until: Any, wait: Callable[..., Any] = pool.acquire) -> Any:
            counts["waits"] += 1
            return wait(self, until)

        monkeypatch.setattr(pool, "acquire", counting)
    return counts


def engine_for(way: str, url: str, stack: list[Callable[[], object]]) -> Any:
    if way == "threads":
        client = redis.Redis.from_url(url)
        stack.append(client.close)
        return RedisEngine(client, deadline=LONG)
    loop = asyncio.new_event_loop()
    engine = Blocking(AsyncRedisEngine(redis.asyncio.Redis.from_url(url), deadline=LONG), loop)
    stack += [loop.close, engine.aclose]
    engine.rests = lambda: loop.run_until_complete(asyncio.sleep(0.005))
    return engine


@pytest.fixture(params=WAYS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Makes the engine of either kind for an address."""
    stack: list[Callable[[], object]] = []
    yield lambda url: engine_for(request.param, url, stack)
    for undo in reversed(stack):
        undo()


def admits(engine: Any) -> bool:
    getattr(engine, "rests", lambda: None)()  # an event loop probes only while it runs
    try:
        return bool(engine.check([DAY])[0].allowed)
    except EngineUnavailable:
        return False


def transport_of(engine: Any) -> Any:
    return (engine._engine if isinstance(engine, Blocking) else engine)._transport


def assert_nobody_waits(engine: Any, waited: Counter[str], says: str, logged: pytest.LogCaptureFixture) -> None:
    """After so many calls that failed, none for their deadline."""
    for _ in range(MAX_FAILURES):
        with pytest.raises(EngineUnavailable):
            engine.check([DAY])
    assert transport_of(engine).server.breaker.is_open
    waited.clear()
    for _ in range(20):
        with pytest.raises(EngineUnavailable, match=says):
            engine.check([DAY])
    assert not waited
    (opened,) = [each.getMessage() for each in logged.records if "not called until" in each.getMessage()]
    assert re.search(says, opened)
    assert len(opened) < 400


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_is_of_no_use(
    fault: str,
    server: ServerWith,
    make: Callable[[str], Any],
    waited: Counter[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    begins, ends, says = FAULTS[fault]
    engine = make(server.url)
    with server.client() as control, caplog.at_level(logging.WARNING, "django_ratelimiter"):
        assert admits(engine)
        for command in begins:
            control.execute_command(*(word.strip("'") for word in command.split()))
        control.client_kill_filter(skipme=True, _type="normal")
        wait_until(lambda: not is_sound(engine))
        assert_nobody_waits(engine, waited, says, caplog)
        for command in ends:
            control.execute_command(*(word.strip("'") for word in command.split()))
        wait_until(lambda: admits(engine))
        assert not transport_of(engine).server.breaker.is_open


def is_sound(engine: Any) -> bool:
    """Whether a connection from before could still be taken for one."""
    if isinstance(engine, Blocking):
        engine.rests()
        return any(connection.is_usable for pool in transport_of(engine)._pools.values() for connection in pool._idle)
    return any(connection.is_usable() for connection in transport_of(engine)._pool.idle)


#: What a server says to each of these commands, "" to the handshake; and what the log says of it.
ANSWERS: dict[str, tuple[dict[str, bytes], str]] = {
    "protected mode": (
        {"": b"-DENIED Redis is running in protected mode because it is enabled.\r\n"},
        "protected mode",
    ),
    "maxclients": ({"": b"-ERR max number of clients reached\r\n"}, "maxclients"),
    "a web server": (
        dict.fromkeys(["*"], b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
        "is not a Redis server",
    ),
    "loading": ({"*": b"-LOADING Redis is loading the dataset in memory\r\n"}, "is loading its data"),
    "MISCONF": (
        {
            "EVALSHA": b"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to "
            b"disk. script: 5b, on @user_script:201.\r\n"
        },
        "could not save",
    ),
    "does not keep scripts": (
        {"EVALSHA": b"-NOSCRIPT No matching script. Please use EVAL.\r\n"},
        "does not keep scripts",
    ),
    "runs no scripts": (
        dict.fromkeys(["EVALSHA", "SCRIPT"], b"-ERR unknown command 'EVALSHA', with args beginning with: \r\n"),
        "runs no Lua scripts",
    ),
    "unauthenticated": (
        {"SCRIPT": b"-ERR Protocol error: unauthenticated bulk length\r\n", "EVALSHA": b"-NOSCRIPT No.\r\n"},
        "requires another password",
    ),
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_answer_that_is_of_no_use(
    fault: str, make: Callable[[str], Any], waited: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    answers, says = ANSWERS[fault]
    with Answering(answers) as server, caplog.at_level(logging.WARNING, "django_ratelimiter"):
        engine = make(server.url)
        assert_nobody_waits(engine, waited, says, caplog)
        server.answers = {}
        wait_until(lambda: admits(engine))


def test_a_fault_of_one_call_alone_does_not_keep_the_others_from_redis(
    server: ServerWith, make: Callable[[str], Any]
) -> None:
    """Somebody else's value stands under its key."""
    engine = make(server.url)
    assert admits(engine)
    other = DAY._replace(key="other", usage="rule|")
    server.ask("RPUSH", "{rl:0}:usage:1", "a")
    for _ in range(2 * MAX_FAILURES):
        with pytest.raises(EngineUnavailable, match="WRONGTYPE"):
            engine.check([other], now_us=60_000_000)
    assert not transport_of(engine).server.breaker.is_open
    assert admits(engine)


IN_A_SCRIPT = "script: 0f9a, on @user_script:1."


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (AuthenticationError("Authentication required."), "another password"),
        (BusyLoadingError("Redis is loading the dataset in memory"), "loading its data"),
        (NoPermissionError("No permissions to access a key"), "may not run a command"),
        (OutOfMemoryError(f"command not allowed when used memory > 'maxmemory'. {IN_A_SCRIPT}"), "memory is full"),
        (ReadOnlyError(f"You can't write against a read only replica. {IN_A_SCRIPT}"), "read-only replica"),
    ],
)
def test_the_class_says_what_the_code_has_said(error: RedisError, says: str) -> None:
    assert is_outage(error)
    assert says in str(sentence_of(error))


def test_a_master_that_is_away_is_an_outage_and_a_missing_script_is_none() -> None:
    assert is_outage(MasterDownError(f"Link with MASTER is down. {IN_A_SCRIPT}"))
    missing = NoScriptError("No matching script. Please use EVAL.")
    assert not is_outage(missing)
    assert "does not keep scripts" in str(sentence_of(missing))
