"""Stored partitions: the top ones and samples, by hour, day and minute."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis
from django.utils import timezone

from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, MemoryEngine
from django_ratelimiter.engine.base import Engine
from django_ratelimiter.engine.partition_stats import is_sampled
from django_ratelimiter.engine.redis import partition_notes
from django_ratelimiter.models import TopCaller, TopPartition, UsageBucket, UsageSample
from django_ratelimiter.usage.collector import collect as module
from django_ratelimiter.usage.collector import partitions as collecting
from django_ratelimiter.usage.collector.collect import Collected, collect

pytestmark = pytest.mark.django_db

#: A Saturday in Berlin, whose next day ends summer time.
DAY = datetime(2025, 10, 24, 22, tzinfo=UTC)
HOUR = timedelta(hours=1)
SAMPLED = next(name for name in map(str, range(100)) if is_sampled(name))
LIMIT = Limit(3, 366 * 86_400, "fixed_window")


@pytest.fixture(autouse=True)
def _use(engine: Engine, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Collect from the engine of the test, in Berlin."""
    settings.TIME_ZONE = "Europe/Berlin"
    monkeypatch.setattr(module, "get_engine", lambda: engine)
    if isinstance(engine, MemoryEngine):
        engine.drop_usage("0:collected before")  # else it would keep one hour only


def meet(engine: Engine, callers: Sequence[str], at: datetime, label: str = "rule|free") -> None:
    for caller in callers:
        charge = Charge(f"{label}:{caller}:{at:%d%H}", LIMIT, usage=label, partition=caller)
        engine.check([charge], now_us=int(at.timestamp()) * 1_000_000)


def top_partitions(granularity: str) -> dict[datetime, dict[str, tuple[int, int]]]:
    found: dict[datetime, dict[str, tuple[int, int]]] = {}
    for row in TopPartition.objects.filter(granularity=granularity).order_by("start", "partition"):
        found.setdefault(row.start, {})[row.partition] = row.allowed, row.rejected
    return found


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
@pytest.mark.parametrize("exactly", [9, 2])
def test_an_estimate_is_marked_and_not_above_the_total_of_its_rule(engine: Any, monkeypatch: Any, exactly: int) -> None:
    """Also one of a caller who was only reported one by one: its later requests may not have been."""
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", exactly)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _most: 1)  # each call is reported, as sixteen
    meet(engine, ["a", "b", "b"], DAY)
    meet(engine, ["b"] * 2, DAY + HOUR)  # one by one again
    meet(engine, ["b"] * 2, DAY)
    collect()
    rows = TopPartition.objects.filter(granularity="hour").order_by("start", "partition")
    marked = [("a", 1, 0, True), ("b", 4, 1, True)] if exactly == 2 else [("a", 1, 0, False), ("b", 3, 1, False)]
    assert [*rows.values_list("partition", "allowed", "rejected", "estimated")] == [*marked, ("b", 2, 0, False)]
    assert TopPartition.objects.filter(granularity="day", estimated=exactly == 2).count() == 2


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_an_estimate_over_all_rules_is_never_above_all_requests(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.partitions, "estimated_hours", MagicMock(**{"__contains__.return_value": True}), False)
    monkeypatch.setattr(engine.partitions, "top_partitions", lambda asked, _most: [{"a": (64, 32)}] * len(asked))
    hour = int(DAY.timestamp()) // 3_600
    monkeypatch.setattr(engine.partitions, "hours", lambda: {(hour, "*user"), (hour, "rule")})
    meet(engine, ["a", "b"] + ["a"] * 4, DAY)
    collect()
    assert set(TopCaller.objects.values_list("partition", "allowed", "rejected", "estimated")) == {("a", 4, 2, True)}


def test_only_so_many_are_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MAX_PARTITIONS", 3)
    meet(engine, ["a"] * 3 + ["b"] * 2 + ["c"] * 9 + ["d"], DAY)
    collect()
    assert set(top_partitions("hour")[DAY]) == {"a", "b", "c"}
    meet(engine, ["e"] * 4, DAY + HOUR)
    collect()
    assert top_partitions("day")[DAY] == {"a": (3, 0), "c": (3, 6), "e": (3, 1)}


def test_what_runs_is_stored_and_goes_on_and_what_is_over_is_forgotten(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [DAY + HOUR / 2]
    monkeypatch.setattr(engine.partitions, "now_us", lambda: int(clock[0].timestamp()) * 1_000_000)
    hours = [int(DAY.timestamp()) // 3_600 + number for number in range(2)]

    def known() -> tuple[set[int], list[int]]:
        heavy = engine.partitions.top_partitions([(hour, "rule") for hour in hours], 9)
        return {hour - hours[0] for hour, _ in engine.partitions.hours()}, list(map(len, heavy))

    meet(engine, ["a", "b"], DAY)
    collect()
    meet(engine, ["a", "c"], DAY)
    collect()
    assert top_partitions("hour") == top_partitions("day") == {DAY: {"a": (2, 0), "b": (1, 0), "c": (1, 0)}}
    assert known() == ({0}, [3, 0])
    clock[0] = DAY + HOUR + timedelta(minutes=1)  # the clock of Redis may be behind
    meet(engine, ["d"], DAY + HOUR)
    collect()
    assert known() == ({0, 1}, [3, 1])
    clock[0] += timedelta(minutes=1)
    collect()
    assert known() == ({1}, [0, 1])
    assert len(top_partitions("day")[DAY]) == 4


def test_an_older_view_takes_nothing_away(engine: Any) -> None:
    """A collector that was held up writes what it had read; what another has stored since is more."""
    meet(engine, ["a"], DAY)
    early = engine.partitions.top_partitions([(int(DAY.timestamp()) // 3_600, "rule")], 9)[0]
    meet(engine, ["a", "b"], DAY)
    collect()
    collecting._store_top("default", "rule", int(DAY.timestamp()) // 3_600, early)
    assert top_partitions("hour")[DAY] == top_partitions("day")[DAY] == {"a": (2, 0), "b": (1, 0)}


def test_samples(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MAX_PARTITIONS", 2)
    names = [name for name in map(str, range(100)) if is_sampled(name)]
    meet(engine, names * 2, DAY)
    collect()
    fields = ("rule_slug", "tier_slug", "minute", "partition_hash", "count")
    rows = UsageSample.objects.order_by("partition_hash").values_list(*fields)
    assert list(rows) == [("rule", "free", DAY, name, 2) for name in sorted(names)[:2]]
    assert collect() == Collected()
    assert UsageSample.objects.count() == 2


def test_a_caller_of_two_tiers_is_sampled_in_both(engine: Engine) -> None:
    meet(engine, [SAMPLED] * 3, DAY)
    meet(engine, [SAMPLED], DAY, "rule|pro")
    meet(engine, [SAMPLED], DAY, "rule|")
    collect()
    assert dict(UsageSample.objects.values_list("tier_slug", "count")) == {"free": 3, "pro": 1, "": 1}


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_of_a_collector_is_nobodys_business(engine: Any, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """What Redis still adds to is not forgotten, and what is over is not left to expire."""
    clock = [DAY + HOUR / 2]
    monkeypatch.setattr(engine.partitions, "now_us", lambda: int(clock[0].timestamp()) * 1_000_000)
    monkeypatch.setattr(timezone, "now", lambda: clock[0] + hours * HOUR)
    meet(engine, [SAMPLED] * 2, clock[0])
    collect()
    meet(engine, [SAMPLED], clock[0])
    clock[0] += timedelta(minutes=3)
    collect()
    assert UsageSample.objects.get().count == 3
    assert top_partitions("hour") == {DAY: {SAMPLED: (3, 0)}}


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_samples_that_have_expired_are_not_looked_for_again(engine: Any, redis_client: redis.Redis) -> None:
    meet(engine, [name for name in map(str, range(100)) if is_sampled(name)], DAY)
    (key,) = redis_client.keys("{test:0}:sample:*")
    redis_client.delete(key)
    assert redis_client.scard("{test:0}:sampled") == 1
    collect()
    assert redis_client.exists("{test:0}:sampled") == 0


def test_a_backlog_is_read_in_parts(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "AT_ONCE", 2)
    read = MagicMock(wraps=engine.partitions.top_partitions)
    monkeypatch.setattr(engine.partitions, "top_partitions", read)
    for number in range(5):
        meet(engine, ["a", SAMPLED], DAY + number * HOUR)
    told: list[tuple[int, int]] = []
    collect(lambda done, waiting: told.append((done, waiting)))
    assert told == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5), *[(5, 5)] * 10]  # hours, and minutes of samples
    assert [len(call.args[0]) for call in read.call_args_list] == [2, 2, 1]
    assert len(top_partitions("hour")) == 5
    assert top_partitions("day") == {DAY: {"a": (5, 0), SAMPLED: (5, 0)}}


def test_where_days_begin_at_half_past(engine: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first half hour is of the hour before; an hour that runs is not forgotten at midnight."""
    settings.TIME_ZONE = "Asia/Kolkata"
    midnight = datetime(2025, 10, 24, 18, 30, tzinfo=UTC)
    meet(engine, ["a"], midnight + HOUR / 4)
    collect()
    assert top_partitions("hour") == {midnight - HOUR: {"a": (1, 0)}}
    assert engine.partitions.hours() == set()
    monkeypatch.setattr(engine.partitions, "now_us", lambda: int((midnight + HOUR / 6).timestamp()) * 1_000_000)
    meet(engine, ["d", "b"], midnight - HOUR / 4)
    collect()
    meet(engine, ["c"], midnight + HOUR / 4)
    collect()
    assert set(top_partitions("hour")[midnight - HOUR]) == {"a", "b", "c", "d"}


def test_what_nothing_was_counted_for_is_kept_for_later(engine: Any) -> None:
    """The counts of another shard, say: only one collector at once may write what is bounded."""
    meet(engine, ["a"], DAY)
    UsageBucket.objects.create(granularity="day", rule_slug="rule", tier_slug="free", start=DAY + 24 * HOUR)
    collecting.collect_partitions(engine, "default")
    assert top_partitions("hour") == {}
    collect()
    assert top_partitions("hour") == top_partitions("day") == {DAY: {"a": (1, 0)}}


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("broken", "error", "expected"),
    [
        ("top_partitions", IndexError(), "ERROR The figures of partitions could not be collected."),
        ("hours", EngineUnavailable("gone"), "WARNING The figures of partitions cannot be collected now: gone"),
    ],
)
def test_what_goes_wrong_here_leaves_the_counts(
    engine: Any, monkeypatch: Any, caplog: Any, broken: str, error: Exception, expected: str
) -> None:
    meet(engine, ["a"], DAY)
    with monkeypatch.context() as patch:
        patch.setattr(engine.partitions, broken, MagicMock(side_effect=error))
        assert collect() == Collected(1, 1)
    [record] = caplog.records
    assert f"{record.levelname} {record.getMessage()}".startswith(expected)
    assert top_partitions("day") == {}
    collect()
    assert top_partitions("day") == {DAY: {"a": (1, 0)}}


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_an_engine_of_ones_own_knows_nothing_of_partitions(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meet(engine, ["a"], DAY)
    monkeypatch.delattr(engine, "partitions")
    assert collect() == Collected(1, 1)
