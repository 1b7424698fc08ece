"""The list of recent rejections in Redis: written by the call that rejects, one key with the minutes, on all shards."""

from __future__ import annotations

import time

import pytest
import redis
import redis.asyncio

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.usage.rejections import FORGOTTEN_US, MAX_TIMES, STEP_US, Rejection
from tests.clusters import Cluster
from tests.engine.redis.test_formats import ALICE, BOB, fill, template
from tests.engine.trio import HOUR

MINUTE = 60_000_000
NONE = Charge(f"rule:{ALICE}", Limit(1, 86_400), cost=2, usage="rule|free")
RECENT = "{recent:0}:recent"


@pytest.fixture
def engine(redis_client: redis.Redis) -> RedisEngine:
    return RedisEngine(redis_client, namespace="recent")


def test_it_is_written_in_the_call_that_rejects(engine: RedisEngine, redis_client: redis.Redis) -> None:
    engine.check([NONE], now_us=HOUR)
    redis_client.config_resetstat()
    engine.check([NONE], now_us=HOUR + 1)
    stats = redis_client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert stats["cmdstat_hincrby"]["calls"] == 2, "that of the usage, and one more"
    assert not {"cmdstat_hset", "cmdstat_hget", "cmdstat_hlen"} & set(stats)
    assert engine.recent_rejections()[0].times == 2


def test_an_allowed_call_names_no_further_key_and_writes_nothing(
    engine: RedisEngine, redis_client: redis.Redis
) -> None:
    allowed = NONE._replace(cost=1)
    engine.check([allowed], now_us=HOUR)
    redis_client.config_resetstat()
    engine.check([allowed._replace(key="rule:other")], now_us=HOUR)
    assert not {"cmdstat_hset", "cmdstat_hget", "cmdstat_hlen"} & set(redis_client.info("commandstats"))
    assert redis_client.hkeys(RECENT) == [b"%d" % (HOUR // MINUTE)]


def test_filled_calls_and_calls_that_come_again_are_recorded(engine: RedisEngine) -> None:
    engine.publish(1)
    call = template(Limit(1, 86_400))
    for whom in (ALICE, BOB, ALICE, ALICE, ALICE):
        engine.check(fill(call, whom), version=1)
    found = engine.recent_rejections()
    assert [(each.partition, each.times, each.rule) for each in found] == [(ALICE, 3, "rule-0")]


def test_closing_a_minute_leaves_the_list_and_forgets_what_is_a_day_old(
    engine: RedisEngine, redis_client: redis.Redis
) -> None:
    now = time.time_ns() // 1_000
    engine.check([NONE], now_us=now - FORGOTTEN_US)
    engine.check([NONE._replace(key=f"rule:{BOB}")], now_us=now)
    assert [each.partition for each in engine.recent_rejections()] == [BOB]
    assert redis_client.hlen(RECENT) == 2 + 2 * 2 + 1
    for batch in engine.take_usage(now_us=now + MINUTE):
        engine.drop_usage(batch)
    name = f"rule|free\nd\n\t{{recent:0}}:rule:{BOB}{NONE.limit.tag}".encode()
    assert set(redis_client.hkeys(RECENT)) == {name, name + b"\n", b""}
    assert 7 * 86_400 < redis_client.ttl(RECENT) <= 8 * 86_400


def test_it_stays_cheap_to_write(engine: RedisEngine, redis_client: redis.Redis) -> None:
    """A hash that Redis searches field by field costs more with each one."""
    engine.check([NONE], now_us=HOUR)
    assert redis_client.object("encoding", RECENT) == b"hashtable"
    assert redis_client.memory_usage(RECENT) < 600


def test_a_count_that_would_grow_too_large_stands_still(engine: RedisEngine, redis_client: redis.Redis) -> None:
    engine.check([NONE], now_us=HOUR)
    [name] = [name for name in redis_client.hkeys(RECENT) if name.endswith(NONE.limit.tag.encode())]
    redis_client.hincrby(RECENT, name, MAX_TIMES + 1_000)
    engine.check([NONE], now_us=HOUR + 4 * STEP_US)
    assert engine.recent_rejections()[0][:3] == (HOUR + 4 * STEP_US, HOUR, MAX_TIMES)


def test_what_an_earlier_version_has_left_is_no_rejection(engine: RedisEngine, redis_client: redis.Redis) -> None:
    redis_client.hset(RECENT, f"rule:{ALICE}:f86400", f"{HOUR} {HOUR} {1:040} rule|free")
    engine.check([NONE], now_us=HOUR)
    assert [each.times for each in engine.recent_rejections()] == [1]


def test_clients_that_decode_read_the_same(engine: RedisEngine, redis_url: str) -> None:
    engine.check([NONE], now_us=HOUR)
    expected = [Rejection(HOUR, HOUR, 1, "rule|free", f"rule:{ALICE}{NONE.limit.tag}")]
    for protocol in (2, 3):
        with redis.Redis.from_url(redis_url, decode_responses=True, protocol=protocol) as client:
            assert RedisEngine(client, "recent").recent_rejections() == expected


def test_a_cluster_s_shards_are_read_as_one_list(running_cluster: Cluster) -> None:
    running_cluster.flush()
    client = LazyRedisCluster(running_cluster.urls[0])
    engine = RedisEngine(client)
    charges = [NONE._replace(key=f"rule:{number}", partition=str(number)) for number in range(12)]
    assert len({engine.shard_of(charge) for charge in charges}) > 4
    for number, charge in enumerate(charges):
        engine.check([charge], now_us=HOUR + number * STEP_US)
    engine.check(charges, now_us=HOUR + 100 * STEP_US)
    found = engine.recent_rejections()
    assert {each.partition for each in found} == set(map(str, range(12)))
    assert {(each.at_us, each.times) for each in found} == {(HOUR + 100 * STEP_US, 2)}
    assert len(engine.recent_rejections(limit=5)) == 5
    client.close()
