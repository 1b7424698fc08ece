"""A caller's counters and recent rejections, read at once: one pipeline for each node, and what one of them lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.local.store import LocalCounters
from django_ratelimiter.engine.redis import LazyRedisCluster, RedisEngine
from django_ratelimiter.engine.redis.commands import ShardCommands
from django_ratelimiter.engine.redis.connections.transport import Transport
from django_ratelimiter.engine.usage.rejections import Denial
from django_ratelimiter.exceptions import EngineUnavailable
from tests.clusters import Cluster
from tests.sends import count_sends

ONE = Limit(1, 3_600)
CHARGES = [Charge(f"rule:{number}", ONE, usage="rule|free", partition=str(number)) for number in range(24)]
DENIAL = Denial("1 ip x plain", 1_800_000_000, 1_700_000_000, 3)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    return count_sends(monkeypatch)


@pytest.fixture
def engine(sends: Counter[int], redis_client: redis.Redis) -> RedisEngine:
    return RedisEngine(redis_client, namespace="callers")


@pytest.fixture
def cluster_engine(sends: Counter[int], running_cluster: Cluster) -> Iterator[RedisEngine]:
    running_cluster.flush()
    client = LazyRedisCluster(running_cluster.urls[0])
    yield RedisEngine(client)
    client.close()


def use(engine: Any, charges: Sequence[Charge], times: int) -> None:
    for charge in charges:
        for _ in range(times):
            engine.check([charge])


def test_one_server_is_sent_to_once(engine: RedisEngine, sends: Counter[int]) -> None:
    use(engine, CHARGES[:3], 2)
    engine.denials.add([DENIAL])
    sends.clear()
    found = engine.peek_at_caller(CHARGES[:4])
    assert sends.total() == 1
    assert [each.allowed for each in found.verdicts] == [False, False, False, True]
    assert [each.charge for each in found.verdicts] == CHARGES[:4]
    assert {each.counter.partition(":c")[0] for each in found.rejections} == {"rule:0", "rule:1", "rule:2"}
    assert found.rejections == engine.recent_rejections()
    assert found.denials == [DENIAL]


def test_each_node_of_a_cluster_is_sent_to_once(
    cluster_engine: RedisEngine, running_cluster: Cluster, sends: Counter[int]
) -> None:
    use(cluster_engine, CHARGES, 2)
    cluster_engine.denials.add([DENIAL])
    cluster_engine.peek_at_caller(CHARGES)
    masters = [server.port for server in running_cluster.masters]
    sends.clear()
    found = cluster_engine.peek_at_caller([*reversed(CHARGES), Charge("new", ONE)])
    assert sends == dict.fromkeys(masters, 1)
    assert [each.allowed for each in found.verdicts] == [False] * len(CHARGES) + [True]
    assert [each.charge for each in found.verdicts] == [*reversed(CHARGES), Charge("new", ONE)]
    assert found.rejections == cluster_engine.recent_rejections()
    assert len(found.rejections) == len(CHARGES)
    assert found.denials == [DENIAL]


def test_the_first_call_of_a_process_learns_who_serves_what(
    cluster_engine: RedisEngine, running_cluster: Cluster
) -> None:
    use(cluster_engine, CHARGES, 2)
    client = LazyRedisCluster(running_cluster.urls[0])
    found = RedisEngine(client).peek_at_caller(CHARGES)
    client.close()
    assert len(found.rejections) == len(CHARGES)
    assert not any(each.allowed for each in found.verdicts)


def test_a_lost_script_and_another_time_take_a_further_call(
    engine: RedisEngine, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(engine, CHARGES[:1], 2)
    redis_client.script_flush()
    assert not engine.peek_at_caller(CHARGES[:1]).verdicts[0].allowed
    daily = Charge("daily", Limit(1, algorithm="fixed_window", calendar="day"), usage="daily|")
    use(engine, [daily], 2)
    monkeypatch.setattr(engine, "estimate_time", lambda now_us: 10**15)  # a clock that is years behind
    assert not engine.peek_at_caller([daily]).verdicts[0].allowed


def test_rejections_that_come_too_late_are_read_without_a_deadline(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(engine, CHARGES[:1], 2)
    engine.denials.add([DENIAL])

    def fails(*_: Any) -> Any:
        raise EngineUnavailable("slow")

    monkeypatch.setattr(Transport, "pipeline", fails)
    found = engine.peek_at_caller(CHARGES[:1])
    assert not found.verdicts[0].allowed
    assert [each.times for each in found.rejections] == [1]
    assert found.denials == [DENIAL]
    monkeypatch.setattr(ShardCommands, "execute_slowly", fails)
    found = engine.peek_at_caller(CHARGES[:1])
    assert (len(found.verdicts), found.rejections, found.denials) == (1, [], [])


def test_without_redis_it_says_so(engine: RedisEngine) -> None:
    away = RedisEngine(redis.Redis(port=1), deadline=0.2)
    with pytest.raises(EngineUnavailable):
        away.peek_at_caller(CHARGES)
    with pytest.raises(EngineUnavailable):
        LocalFirstEngine(away, LocalCounters()).peek_at_caller(CHARGES)


def test_what_a_process_counts_by_itself_is_told_as_by_peek(engine: RedisEngine, sends: Counter[int]) -> None:
    local = LocalFirstEngine(engine, LocalCounters())
    charges = [
        CHARGES[0],
        Charge("local", Limit(5, 3_600), sync_interval=-1.0),
        Charge("synced", Limit(9, 3_600), sync_interval=60.0),
    ]
    use(local, charges, 3)
    sends.clear()
    found = local.peek_at_caller(charges)
    assert sends.total() == 1
    assert [each.remaining for each in found.verdicts] == [0, 2, 6]
    assert [(each.charge, each.allowed, each.remaining) for each in found.verdicts] == [
        (each.charge, each.allowed, each.remaining) for each in local.peek(charges)
    ]
