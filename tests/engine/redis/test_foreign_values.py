"""Keys of ours to which another program has written."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit
from django_ratelimiter.engine.base import Version
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.commands import ShardCommands

USAGE = f"usage:{time.time_ns() // 60_000_000_000 - 5}"


def put(client: redis.Redis, key: str, value: str | bytes | list[str]) -> None:
    client.delete(key)
    client.rpush(key, *value) if isinstance(value, list) else client.set(key, value)


@pytest.mark.parametrize("value", ["", "abc", b"\xff" * 200, ["a"]], ids=["empty", "short", "long", "list"])
@pytest.mark.parametrize("algorithm", [*Algorithm])
def test_a_counter_that_cannot_be_read_is_counted_anew(
    redis_client: redis.Redis, algorithm: Algorithm, value: Any
) -> None:
    engine = RedisEngine(redis_client)
    good, odd = Charge("good", Limit(5, 60, "fixed_window")), Charge("odd", Limit(5, 60, algorithm))
    for charges in ([odd], [good, odd]):
        put(redis_client, f"{{rl:0}}:odd{odd.limit.tag}", value)
        [*_, verdict] = engine.check(charges)
        assert verdict.remaining == 4
    assert engine.peek([good])[0].remaining == 4


@pytest.mark.parametrize("name", ["recent", "source", "batches", USAGE])
def test_collecting_deletes_what_is_of_another_type(redis_client: redis.Redis, name: str) -> None:
    engine = RedisEngine(redis_client)
    earlier = (int(USAGE[6:]) - 1) * 60_000_000
    for at in (earlier, earlier + 60_000_000):
        engine.check([Charge("key", Limit(9, 60), usage="rule|")], now_us=at)
    engine.take_usage(now_us=earlier + 60_000_000)
    put(redis_client, f"{{rl:0}}:{name}", ["a"])
    engine.take_usage()
    engine.check([Charge("key", Limit(9, 60), usage="rule|")], now_us=earlier + 120_000_000)
    [*_, batch] = engine.take_usage()
    assert [count.allowed for count in engine.read_usage(batch)] == [1]


@pytest.mark.parametrize("value", ["", "7", "3:", "3:x", "3:" + "7" * 17, b"\xff:\xff", ["3:7"]])
def test_a_version_that_cannot_be_read_counts_as_none(redis_client: redis.Redis, value: Any) -> None:
    engine = RedisEngine(redis_client)
    put(redis_client, engine.version_key(0), value)
    assert engine.versions() == [None]
    engine.publish(Version(7, 3))
    assert engine.versions() == [Version(7, 3)]


@pytest.mark.parametrize("decodes", [False, True])
def test_other_values_in_the_place_of_a_proxy_are_passed_over_or_returned(redis_url: str, decodes: bool) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=decodes) as client:
        engine = RedisEngine(client)
        engine.note_proxy("10.0.0.1")
        [key] = client.keys("*proxy*")
        assert 0 < client.ttl(key) <= 7_200
        engine.commands = ShardCommands(engine, lambda shard, command: command(client))  # through the client itself
        assert engine.proxies() == ["10.0.0.1"]
        put(client, key, ["a"])
        assert engine.proxies() == []
        if not decodes:
            put(client, key, b"\xff")
            assert engine.proxies() == ["\ufffd"]
