"""Callers whom a process meets for the first time in an hour are told of as others are, by a call that is filled in."""

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
from django_ratelimiter.engine.redis.partition_notes import PartitionTracker

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
    hours = stats.hours()
    labels = [(label, (hour,)) for hour, label in sorted(hours)]
    tops = [
        stats.top_partitions([(hour, rule)], 100) for hour, _ in sorted(hours)[:1] for rule in ("two", "one", "all")
    ]
    samples = Counter[tuple[str, str]]()
    for found in stats.samples(2**40).values():  # of two minutes, if one ends meanwhile
        samples.update(found)
    return hours, stats.count(labels), tops, samples


def test_what_is_recorded_is_that_of_their_charges(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Call] = []
    usual = PartitionTracker.acknowledge_new
    monkeypatch.setattr(
        PartitionTracker, "acknowledge_new", lambda self, *about: (told.append(about[0]), usual(self, *about))
    )
    engine, one_by_one = RedisEngine(redis_client, "new"), RedisEngine(redis_client, "usual")
    verdicts = [engine.check(each) for each in visits()]
    assert sum(type(each) is Answer for each in verdicts) > 100
    for each in visits():
        one_by_one.check(list(each))
    assert recorded(engine) == recorded(one_by_one)
    assert len(told) == len({each.partitions[0] for each in visits()}) - 1  # the first call begins the hour


def test_who_was_not_answered_is_told_of_again() -> None:
    tracker, charges = PartitionTracker(lambda: NOW_US), visits()[0]
    tracker.of(charges, NOW_US)  # the hour has begun
    assert tracker.kind_of(charges, NOW_US) == tracker.kind_of(charges, NOW_US) == (1, 0, 0b1101)
    tracker.acknowledge_new(charges, NOW_US + HOUR_US)  # it was told in the next hour
    assert tracker.kind_of(charges, NOW_US) == (1, 0, 0b1101)
    tracker.acknowledge_new(charges, NOW_US)
    assert tracker.kind_of(charges, NOW_US) == (1, 0, 0)
    assert tracker.of(charges, NOW_US)[0].what[0] == 0


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
    for _ in range(3):
        engine.check(seen[0])
    stats = engine.partitions
    hours = stats.hours()
    met = {partition for charges in seen for partition in charges.partitions if partition != SHARED}
    assert stats.count([("two|", tuple(hour for hour, label in hours if label == "two|"))]) == [len(met)]
