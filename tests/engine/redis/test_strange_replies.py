"""Replies that no Redis sends: no decision is made of them, and none is taken for the answer to a later call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.engine.call import CallTemplate, ChargeTemplate
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine
from tests.engine.answering import Answering
from tests.engine.redis.test_async_engine import on_a_loop
from tests.engine.redis.test_deadline import wait_until
from tests.engine.redis.test_formats import fill

DAY = Charge("key", Limit(1_000, 86_400, "token_bucket"))
NOW = 1_700_000_000_000_000


def verdict(remaining: int) -> bytes:
    """What check.lua says of one charge that passes."""
    return b"*5\r\n:%d\r\n:%d\r\n:0\r\n:86400000\r\n:0\r\n" % (NOW, remaining)


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering({"EVALSHA": verdict(7)}) as server:
        yield server


@pytest.fixture
def engine(of_either_kind: Any, server: Answering) -> Iterator[Any]:
    """The engine of either kind, with one connection."""
    with redis.Redis.from_url(server.url) as client:
        engine = of_either_kind(RedisEngine(client, deadline=20.0))
        engine.check([DAY])
        yield engine


STRANGE = [
    *(b"+OK\r\n", b"$2\r\nOK\r\n", b":5\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n"),
    *(b"*1\r\n$1\r\na\r\n", b"*1\r\n*0\r\n", b"*1\r\n:-2\r\n"),
    *(b"-MOVED\r\n", b"-MOVED 1 there\r\n", b"-ASK 1 there:x\r\n", b"-\r\n", b"-ERR \xff\r\n", b"hello\r\n"),
]
#: Of one charge; to a call without charges the first of them is a good one.
STRANGE_VERDICTS = [
    *(b"*1\r\n:5\r\n", b"*4" + verdict(7)[2:-4], b"*9" + verdict(7)[2:] + b":0\r\n" * 4),
    *(b"*5\r\n:5\r\n:5\r\n$-1\r\n:5\r\n:5\r\n", b"*5\r\n:5\r\n:5\r\n:0\r\n+a\r\n:5\r\n"),
    *(b"*2\r\n:5\r\n:5\r\n", b"*3\r\n:5\r\n$-1\r\n:5\r\n", b"*3\r\n:5\r\n:5\r\n+a\r\n"),
]


@pytest.mark.parametrize("call", ["check", "peek", "version", "refund", "publish"])
@pytest.mark.parametrize("reply", STRANGE)
def test_what_no_redis_says_is_no_answer(server: Answering, engine: Any, reply: bytes, call: str) -> None:
    (receipt,), (before,) = engine.check([DAY]), list(server.open)
    calls = {
        "check": lambda: engine.check([DAY]),
        "peek": lambda: engine.peek([DAY]),
        "version": lambda: engine.check([], version=1),
        "refund": lambda: engine.refund([receipt]),
        "publish": lambda: engine.publish(1),
    }
    server.answers["EVALSHA"] = reply
    with pytest.raises(EngineUnavailable):
        calls[call]()
    if not reply.startswith((b"-\r\n", b"-ERR")):  # a Redis might
        wait_until(lambda: before not in server.open)
    server.answers["EVALSHA"] = verdict(6)
    assert engine.check([DAY])[0].remaining == 6


@pytest.mark.parametrize("reply", STRANGE_VERDICTS)
def test_neither_are_verdicts_that_are_none(server: Answering, engine: Any, reply: bytes) -> None:
    filled = fill(CallTemplate([ChargeTemplate("key:", "", DAY)]))  # without usage, there is nothing to note
    (before,) = server.open
    server.answers["EVALSHA"] = reply
    for ask, charges in ((engine.check, [DAY]), (engine.peek, [DAY]), (engine.check, filled)):
        with pytest.raises(EngineUnavailable):
            ask(charges)
    wait_until(lambda: before not in server.open)
    server.answers["EVALSHA"] = verdict(6)
    assert engine.check([DAY])[0].remaining == 6


@pytest.mark.parametrize("surplus", [b":1\r\n", b"*5\r\n:1\r\n", verdict(999), b"hello"])
def test_a_surplus_reply_is_nobodys(server: Answering, engine: Any, surplus: bytes) -> None:
    (before,) = server.open
    server.answers["EVALSHA"] = verdict(7) + surplus
    assert engine.check([DAY])[0].remaining == 7
    server.answers["EVALSHA"] = verdict(6)
    assert engine.check([DAY])[0].remaining == 6
    wait_until(lambda: before not in server.open)


def test_nor_is_it_that_of_who_waits_for_the_connection(server: Answering) -> None:
    async def use(engine: AsyncRedisEngine) -> list[int]:
        server.answers["EVALSHA"] = verdict(7) + verdict(999)
        found = await asyncio.gather(*(engine.check([DAY]) for _ in range(3)))
        return [verdicts[0].remaining for verdicts in found]

    assert on_a_loop(server.url, use, deadline=20.0, max_connections=1) == [7, 7, 7]
