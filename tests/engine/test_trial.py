"""A trial gives the verdicts that the next check gives, and leaves no trace."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.local.store import LocalCounters
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.registry import Algorithm

START_US = 1_700_000_000_000_000


def random_charges(random: Random) -> list[Charge]:
    charges = []
    for algorithm in random.sample(list(Algorithm), random.randint(1, 4)):
        limit = Limit(random.randint(1, 6), random.choice((1, 10, 60)), algorithm)
        charges.append(
            Charge(
                f"{algorithm}:{random.randint(1, 2)}",
                limit,
                random.choice((1, 1, 2, 7)),
                gating=random.random() < 0.8,
                count_refusals=random.random() < 0.3,
                usage="rule|tier",
            )
        )
    return charges


@pytest.mark.parametrize("seed", range(12))
def test_trial_gives_what_the_check_then_gives(engine: Any, seed: int) -> None:
    random, now_us = Random(seed), START_US
    for _ in range(60):
        charges = random_charges(random)
        tried = engine.trial(charges, now_us)
        assert engine.trial(charges, now_us) == tried  # the first has left nothing
        assert list(engine.check(charges, now_us=now_us)) == tried
        now_us += random.choice((0, 1, 300_000, 2_000_000))


def test_trial_writes_nothing(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client, namespace="test")
    engine.check([Charge("key", Limit(5, 60), usage="rule|")])
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    for algorithm in Algorithm:
        engine.trial([Charge("key", Limit(5, 60)), Charge("other", Limit(5, 60, algorithm), usage="rule|")])
    assert {key: redis_client.dump(key) for key in redis_client.scan_iter()} == before


def test_trial_over_several_shards_says_what_is_left_afterwards(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client, namespace="test", shards=4)
    charges = [Charge(f"key{number}", Limit(5, 60)) for number in range(6)]
    assert [verdict.remaining for verdict in engine.trial(charges)] == [4] * 6
    assert [verdict.remaining for verdict in engine.check(charges)] == [4] * 6


def test_trial_of_synced_charges_counts_what_this_process_holds(redis_client: redis.Redis) -> None:
    engine = LocalFirstEngine(RedisEngine(redis_client, namespace="test"), LocalCounters())
    synced = [Charge("key", Limit(100, 60), sync_interval=10.0)]
    for _ in range(5):
        engine.check(synced)
    assert [verdict.remaining for verdict in engine.trial(synced)] == [94]
    assert [verdict.remaining for verdict in engine.trial(synced)] == [94]


def test_trial_keeps_the_memory_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MemoryEngine(lambda: START_US)
    engine.trial([Charge("key", Limit(5, 60))])
    assert engine.peek([Charge("key", Limit(5, 60))])[0].remaining == 5
