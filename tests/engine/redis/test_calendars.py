"""The clock that decides: that of Redis for calendar windows, or that of the process, so that no server is asked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
import redis.asyncio

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.calendars import CALENDARS
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from example_project.redis_server import RedisServer
from tests.clusters import Cluster, ServerWith
from tests.counting import engine_at, sums_of
from tests.reference import calendar_window
from tests.unit.test_calendars import calendar, moment


@pytest.mark.parametrize("days", [-400, -1.001, -0.3, 0.3, 1.001, 400])
@pytest.mark.parametrize("unit", CALENDARS)
def test_the_clock_of_redis_decides_which_window_it_is(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, unit: str, days: float
) -> None:
    limit = calendar(unit, "Pacific/Apia")
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(days * 86_400 * 10**9))
    engine = RedisEngine(redis_client, namespace="skewed")
    redis_client.config_resetstat()
    for left in (4, 3, 2):
        verdict = engine.check([Charge("key", limit), Charge("other", Limit(5, 60))])[0]
        seconds, rest = redis_client.time()
        assert 0 <= seconds * 1_000_000 + rest - verdict.at_us < 10_000_000
        assert verdict.remaining == left
        assert verdict.at_us + round(verdict.reset_after * 1_000_000) == calendar_window(limit, verdict.at_us)[1]
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls <= 5, "asked again once at most; then the engine knows the time of Redis"
    if days in (-400, 400) or (unit == "day" and abs(days) > 1):
        assert calls >= 4


def test_a_call_that_is_asked_again_is_counted_and_charged_once(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 400 * 86_400 * 10**9)
    for number in range(3):
        engine = RedisEngine(redis_client, namespace="again")  # each begins with its own idea of the time
        engine.publish(1)
        receipts = engine.check([Charge("receipt", Limit(5, 60, "token_bucket"))])
        charge = Charge("key", calendar("year"), 2, usage="rule|")
        rejected = engine.check([charge], version=1, refund_if_denied=receipts)[0]
        assert (rejected.allowed, receipts[0].spent) == ((True, 1), (True, 1), (False, 0))[number]
    [counts] = sums_of(engine, "allowed", "rejected").values()
    assert counts == (2, 1)


def test_calls_for_other_times_do_not_mislead_the_clock(redis_client: redis.Redis) -> None:
    """A replay names its own times; that says nothing of the clock of Redis."""
    engine, limit = RedisEngine(redis_client, namespace="replayed"), calendar("day")
    old = engine.check([Charge("key", limit, 5)], now_us=moment("2017-05-05T12:00"))[0]
    assert old.reset_after == 12 * 3_600
    redis_client.config_resetstat()
    assert engine.check([Charge("other", limit)])[0].remaining == 4
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


CHARGES = [
    Charge("a", Limit(2, 60), usage="a|", partition="a"),
    Charge("b", Limit(2, calendar="year", algorithm="fixed_window"), usage="b|", partition="b"),
]


def asked_for_time(server: RedisServer | ServerWith) -> bool:
    with redis.Redis(port=server.port) as client:
        return "cmdstat_time" in client.info("commandstats")


def test_a_server_is_not_asked(server: RedisServer, of_either_kind: Any) -> None:
    with engine_at(server.url, clock="client") as threads:
        engine = of_either_kind(threads)
        engine.publish(1)
        began = time.time_ns() // 1_000
        verdicts = [engine.check(CHARGES, version=1) for _ in range(3)]
        assert [all(verdict.allowed for verdict in each) for each in verdicts] == [True, True, False]
        assert began <= verdicts[0][0].at_us <= verdicts[2][0].at_us <= time.time_ns() // 1_000
        assert engine.peek(CHARGES)[0].remaining == 0
        engine.refund(verdicts[0])
        threads.take_usage()
        assert threads.partitions.now_us() >= began
    assert not asked_for_time(server)


def test_nor_is_a_cluster(running_cluster: Cluster) -> None:
    running_cluster.flush()
    for node in running_cluster.servers:
        node.ask("CONFIG", "RESETSTAT")
    client = LazyRedisCluster(running_cluster.urls[0])
    engine = RedisEngine(client, shards=8, clock="client")
    engine.publish(1)
    allowed = [verdict.allowed for _ in range(3) for verdict in engine.check(CHARGES, version=1)]
    assert allowed == [True, True, True, True, False, False]
    engine.take_usage()
    client.close()
    assert not any(asked_for_time(node) for node in running_cluster.servers)
    running_cluster.flush()


def test_there_is_no_other_clock(redis_client: redis.Redis) -> None:
    with pytest.raises(ValueError, match="clock: must be one of server, client, not 'sundial'"):
        RedisEngine(redis_client, clock="sundial")
