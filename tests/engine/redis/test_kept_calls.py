"""A tuple of charges is taken for one that comes again: its call is packed once, and decides as any other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis import protocol as plans
from django_ratelimiter.engine.redis.protocol import ScriptMode
from django_ratelimiter.exceptions import StaleRules
from tests.engine.trio import HOUR

CHARGES = (
    Charge("first", Limit(5, 60), usage="one|"),
    Charge("second", Limit(3, 3_600, "token_bucket"), gating=False, usage="two|"),
)
BY_CALENDAR = (Charge("third", Limit(5, calendar="day", algorithm="fixed_window")),)


@pytest.fixture
def engine(redis_client: redis.Redis) -> RedisEngine:
    return RedisEngine(redis_client, namespace="kept")


def call(engine: RedisEngine, charges: Sequence[Charge], version: int | None = 1, minute: int = 0) -> bytes:
    return engine.encode(ScriptMode.CHECK, charges, (), version, None, (HOUR + minute * 60_000_000,))


def test_the_bytes_are_those_of_a_list(engine: RedisEngine) -> None:
    for _ in range(2):
        assert call(engine, CHARGES) == call(engine, list(CHARGES))


def test_it_names_the_minute_that_it_will_be_counted_in(engine: RedisEngine) -> None:
    first, next_one = call(engine, CHARGES), call(engine, CHARGES, minute=1)
    assert b"}:usage:%d\r\n" % (HOUR // 60_000_000) in first
    assert next_one == call(engine, list(CHARGES), minute=1) != first
    assert call(engine, CHARGES, minute=1) is next_one


def test_it_is_packed_once_for_each_version(engine: RedisEngine) -> None:
    first = call(engine, CHARGES)
    assert call(engine, CHARGES) is first
    assert call(engine, CHARGES, 2) == call(engine, list(CHARGES), 2) != first
    assert call(engine, list(CHARGES)) is not first


def test_windows_of_the_calendar_are_named_anew_each_time(engine: RedisEngine) -> None:
    assert call(engine, BY_CALENDAR) is not call(engine, BY_CALENDAR)
    assert not engine._cached_calls


def test_no_more_than_so_many_are_kept(engine: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_CACHED_CALLS", 10)
    for number in range(25):
        call(engine, (Charge(str(number), Limit(5, 60)),))
    assert len(engine._cached_calls) == 5


def test_it_decides_as_the_memory_engine_does(engine: RedisEngine) -> None:
    memory = MemoryEngine(lambda: at_us)
    engine.publish(1)
    for _ in range(7):
        mine = engine.check(CHARGES, version=1)
        at_us = mine[0].at_us
        told = [(verdict.allowed, verdict.remaining, verdict.retry_after) for verdict in mine]
        assert told == [(each.allowed, each.remaining, each.retry_after) for each in memory.check(CHARGES)]
    assert not mine[0].allowed


def test_a_later_version_is_heard_of(engine: RedisEngine) -> None:
    engine.publish(1)
    engine.check(CHARGES, version=1)
    engine.publish(2)
    with pytest.raises(StaleRules):
        engine.check(CHARGES, version=1)
