"""What RedisEngine makes of servers that forget, change, restart, stay silent or are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, Verdict
from django_ratelimiter.engine.redis import RedisEngine
from example_project.redis_server import RedisServer, free_port
from tests.engine.redis.test_deadline import stopped
from tests.engine.slow import SlowProxy
from tests.engine.trio import HOUR

DAY = Charge("key", Limit(5, 86_400, "token_bucket"), usage="rule|tier")


def spent(client: redis.Redis, charge: Charge = DAY, namespace: str = "rl") -> int:
    """Units of the charge's limit that are spent, seen over another connection."""
    return charge.limit.capacity - RedisEngine(client, namespace).peek([charge])[0].remaining


def test_a_server_that_comes_back_on_its_port_is_used_again(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client)
        engine.check([DAY])
        server.kill()
        with pytest.raises(EngineUnavailable):
            engine.check([DAY])
        server.start()
        assert engine.check([DAY])[0].remaining == 4, "an empty server, and nothing was counted twice"
        assert [spent(client), engine.check([DAY])[0].remaining] == [1, 3]


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
    with redis.Redis.from_url(proxy.url) as client:
        engine = RedisEngine(client)
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
    with redis.Redis.from_url(server.url, socket_timeout=1.0) as client:
        engine = RedisEngine(client)
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
