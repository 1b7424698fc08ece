"""Callers are reported by a call that is filled in as by one that is packed charge by charge."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import redis
import redis.asyncio

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.call import Answer, Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.redis import RedisEngine, partition_notes

HOUR_US = 3_600_000_000
NOW_US = 490_000 * HOUR_US
CALLERS = [f"{number:022}" for number in range(70)]
SHARED = "0" * 21 + "_"


def template() -> CallTemplate:
    """A rule of two limits, one of one limit, one that all callers share, and one that is not counted."""
    hour, day = Limit(2, 86_400, "fixed_window"), Limit(1_000, 86_400, "token_bucket")
    made = [("two", hour, "two|", True), ("two", day, "two|", True), ("one", day, "one|pro", True)]
    made += [("all", day, "all|", False), ("none", day, None, True)]
    return CallTemplate(
        [ChargeTemplate(f"{name}:", "", Charge("", limit, usage=label), split) for name, limit, label, split in made]
    )


def visits() -> list[Call]:
    call, choice = template(), random.Random(5)
    places = [(name, name, name, SHARED, name) for name in choice.choices(CALLERS, k=150)]
    return [Call(call, each) for each in places]


def recorded(engine: RedisEngine) -> tuple[Any, ...]:
    stats = engine.partitions
    hours = sorted(stats.hours())
    samples = Counter[tuple[str, str]]()
    for found in stats.samples(2**40).values():  # of two minutes, if one ends meanwhile
        samples.update(found)
    return hours, stats.top_partitions(hours, 100), samples


def test_what_is_recorded_is_that_of_their_charges(redis_client: redis.Redis) -> None:
    engine, one_by_one = RedisEngine(redis_client, "new"), RedisEngine(redis_client, "usual")
    verdicts = [engine.check(each) for each in visits()]
    assert sum(type(each) is Answer for each in verdicts) > 100
    for each in visits():
        one_by_one.check(list(each))
    assert recorded(engine) == recorded(one_by_one)


def test_a_call_that_only_asks_for_the_version_tells_nothing(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However busy the process is: requests that no rule matches make such calls."""
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 0)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _end: 3)  # each third call is weighed
    engine, seen = RedisEngine(redis_client, "empty"), visits()
    for charges in seen:
        engine.check(charges)
        assert engine.check((), version=None) == []
    hours = sorted(engine.partitions.hours())
    [weights] = engine.partitions.top_partitions([each for each in hours if each[1] == "one"], 100)
    assert sum(map(sum, weights.values())) == len(seen) // 3 * 16
