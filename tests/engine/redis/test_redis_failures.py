"""Servers that forget, change, restart, stay silent or are not there, and keys to which another program has written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, EngineUnavailable, Limit, Verdict
from django_ratelimiter.engine.base import Version
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.commands import ShardCommands
from example_project.redis_server import RedisServer, free_port
from tests.counting import engine_at
from tests.engine.redis.test_deadline import stopped
from tests.engine.slow import SlowProxy
from tests.engine.trio import HOUR

DAY = Charge("key", Limit(5, 86_400, "token_bucket"), usage="rule|tier")


def spent(client: redis.Redis, charge: Charge = DAY, namespace: str = "rl") -> int:
    """Units of the charge's limit that are spent, seen over another connection."""
    return charge.limit.capacity - RedisEngine(client, namespace).peek([charge])[0].remaining


def test_a_lost_script_is_loaded_again(redis_client: redis.Redis, of_either_kind: Any) -> None:
    engine = of_either_kind(RedisEngine(redis_client))
    engine.check([DAY])
    redis_client.script_flush()
    assert engine.check([DAY])[0].remaining == 3
    redis_client.script_flush()
    engine.publish(1)
    assert engine.check([DAY], version=1)[0].remaining == 2


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[SlowProxy]:
    with SlowProxy(server.port) as proxy:
        yield proxy


def test_a_decision_whose_reply_is_lost_is_counted_once(
    server: RedisServer, proxy: SlowProxy, of_either_kind: Any
) -> None:
    with redis.Redis.from_url(proxy.url) as client, redis.Redis.from_url(server.url) as direct:
        engine = of_either_kind(RedisEngine(client))
        engine.check([DAY])
        proxy.lose = True
        with pytest.raises(EngineUnavailable):
            engine.check([DAY])
        assert not proxy.lose
        assert spent(direct) == 2
        assert engine.check([DAY])[0].remaining == 2
        (batch,) = RedisEngine(direct).take_usage(now_us=HOUR * 2)
        assert [count.allowed for count in RedisEngine(direct).read_usage(batch)] == [3]


def test_a_refund_whose_reply_is_lost_can_be_asked_for_again(server: RedisServer, proxy: SlowProxy) -> None:
    """It may have happened or not; the receipt stays good, and a bucket never gets more than it holds."""
    with engine_at(proxy.url) as engine:
        receipts: list[Verdict] = engine.check([DAY])
        proxy.lose = True
        with pytest.raises(EngineUnavailable):
            engine.refund(receipts)
        assert receipts[0].spent == 1
        engine.refund(receipts)
        assert receipts[0].spent == 0
        assert engine.peek([DAY])[0].remaining == 5


def test_a_reply_that_comes_too_late_is_nobodys(server: RedisServer) -> None:
    """After a time-out its connection is dropped: the next call must not read the answer to this one."""
    with engine_at(server.url, socket_timeout=1.0) as engine:
        engine.check([DAY])
        with stopped(server), pytest.raises(EngineUnavailable):
            engine.check([DAY])
        six = Charge("other", Limit(6, 86_400))
        assert engine.check([six], now_us=HOUR)[0] == Verdict(
            True, 5, 0.0, 172_800.0 - HOUR // 1_000_000 % 86_400, 0.0, False, HOUR, six, 1, HOUR
        )


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: engine.check([DAY]),
        lambda engine: engine.peek([DAY]),
        lambda engine: engine.refund([Verdict(True, 4, 0.0, 0.0, 0.0, False, HOUR, DAY, 1, HOUR)]),
        lambda engine: engine.reset([DAY]),
        lambda engine: engine.publish(1),
        lambda engine: engine.take_usage(),
        lambda engine: engine.read_usage("1:a"),
        lambda engine: engine.drop_usage("1:a"),
    ],
    ids=["check", "peek", "refund", "reset", "publish", "take_usage", "read_usage", "drop_usage"],
)
def test_without_a_server_the_engine_is_unavailable(ask: Callable[[RedisEngine], object]) -> None:
    with redis.Redis.from_url(f"redis://127.0.0.1:{free_port()}/0", socket_connect_timeout=0.5) as client:
        with pytest.raises(EngineUnavailable) as caught:
            ask(RedisEngine(client))
        assert isinstance(caught.value.__cause__, redis.ConnectionError)


def test_a_clients_own_retries_hold_no_decision_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis(…) tries to connect for seconds; a request would wait as long."""
    naps: list[float] = []
    monkeypatch.setattr("redis.retry.sleep", naps.append)
    with redis.Redis(port=free_port()) as client, pytest.raises(EngineUnavailable):
        RedisEngine(client).check([DAY])
    assert naps == []


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
