"""A collection adds, repeats, leaves alone and survives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone
from django.utils.timezone import get_default_timezone

from django_ratelimiter import databases
from django_ratelimiter.engine import Algorithm, Charge, EngineUnavailable, Limit, MemoryEngine, UsageCount
from django_ratelimiter.engine.base import Engine
from django_ratelimiter.engine.usage import UsageCarry
from django_ratelimiter.models import UsageBatch, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.collector import collect as module
from django_ratelimiter.usage.collector.collect import Collected, collect
from django_ratelimiter.usage.collector.upsert import BucketKey, add
from tests.making import failing

pytestmark = pytest.mark.django_db

fail = failing(EngineUnavailable("made to fail"))

MINUTE_US = 60_000_000
START = datetime(2025, 11, 21, 14, 5, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
MIDNIGHT = datetime(2025, 11, 21, tzinfo=get_default_timezone())
LIMIT = Limit(2, 86_400, Algorithm.FIXED_WINDOW, soft_quota=1)


@pytest.fixture(autouse=True)
def _use(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collect from the engine of the test."""
    monkeypatch.setattr(module, "get_engine", lambda: engine)


def decide(engine: Engine, usage: str = "rule|free", times: int = 1, minute: int = 0, gating: bool = True) -> None:
    for _ in range(times):
        engine.check(
            [Charge(f"{usage}:{minute}", LIMIT, usage=usage, gating=gating)], now_us=START_US + minute * MINUTE_US
        )


def rows() -> list[tuple[object, ...]]:
    fields = ("rule_slug", "tier_slug", "allowed", "rejected", "shadow_rejected", "soft_exceeded")
    minutes = UsageBucket.objects.filter(granularity="minute")
    return list(minutes.order_by("start", "rule_slug", "tier_slug").values_list(*fields))


def test_what_is_counted(engine: Engine) -> None:
    decide(engine, times=5)
    decide(engine, "shadow|", times=5, gating=False)
    assert collect() == Collected(batches=1, requests=10)
    assert rows() == [("rule", "free", 2, 3, 0, 1), ("shadow", "", 2, 0, 3, 1)]
    starts = dict(UsageBucket.objects.filter(rule_slug="rule").values_list("granularity", "start"))
    assert starts == {"minute": START, "hour": START.replace(minute=0), "day": MIDNIGHT}


def test_minutes_stay_apart_and_late_counts_join_theirs(engine: Engine) -> None:
    decide(engine)
    decide(engine, minute=1)
    assert collect() == Collected(batches=2, requests=2)
    decide(engine)
    assert collect() == Collected(batches=1, requests=1)
    minutes = UsageBucket.objects.filter(granularity="minute").order_by("start")
    assert list(minutes.values_list("start", "allowed")) == [
        (START, 2),
        (START + timedelta(minutes=1), 1),
    ]


def test_nothing_to_collect(engine: Engine) -> None:
    assert collect() == Collected()
    assert not UsageBatch.objects.exists()


@pytest.mark.parametrize("first", [0, 1])
def test_what_takes_counts_back_may_come_before_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Shards are listed one after the other, their clocks differ, and one may be out of reach."""
    decide(engine, times=2)
    engine.take_usage()
    engine.check([], counts=UsageCarry("taken back", ((START_US // MINUTE_US, "rule|free\na", -1),)))
    both = engine.take_usage()
    both.sort(key=lambda batch: engine.read_usage(batch)[0].allowed, reverse=bool(first))
    for batch in both:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "take_usage", lambda batch=batch: [batch])
            assert collect().batches == 1
    assert rows() == [("rule", "free", 1, 0, 0, 1)]
    assert engine.take_usage() == []


def test_batches_may_correct_each_other(engine: Engine) -> None:
    """As those of two shards do, if each has rejected requests that the other one had allowed."""
    for rule, other in (("api", "key"), ("key", "api")):
        decide(engine, f"{rule}|free", times=2)
        engine.check([], counts=UsageCarry(f"by {rule}", ((START_US // MINUTE_US, f"{other}|free\na", -1),)))
        engine.take_usage()
    assert collect() == Collected(batches=2, requests=2)
    assert rows() == [("api", "free", 1, 0, 0, 1), ("key", "free", 1, 0, 0, 1)]


def test_what_is_taken_back_and_never_came_holds_up_nothing(engine: Engine) -> None:
    """The counts are lost, or so old that their row was deleted."""
    engine.check([], counts=UsageCarry("taken back", ((START_US // MINUTE_US, "rule|free\na", -3),)))
    assert collect().failed == 0
    assert rows() == [("rule", "free", -3, 0, 0, 0)]
    assert engine.take_usage() == []


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_what_was_taken_back_in_the_same_minute_makes_no_row(engine: Engine) -> None:
    key = BucketKey("minute", "rule", "free", START)
    with transaction.atomic():
        add("default", {key: [0] * 7, key._replace(tier_slug="pro"): [-1, 0, 0, 0, 0, 0, 0]})
    assert rows() == [("rule", "pro", -1, 0, 0, 0)]


@pytest.mark.parametrize(
    ("label", "rule", "tier"),
    [
        ("no bar", "no bar", ""),
        ("|", "", ""),
        ("rule|free|more", "rule", "free|more"),
        ("r" * 80 + "|" + "t" * 80, "r" * 50, "t" * 50),
        ("nul\x00|free", "nul", "free"),
    ],
)
def test_malformed_labels_count_under_what_can_be_known(engine: Engine, label: str, rule: str, tier: str) -> None:
    decide(engine, label)
    decide(engine, "other|free")
    assert collect() == Collected(batches=1, requests=2)
    assert (rule, tier, 1, 0, 0, 0) in rows()
    assert ("other", "free", 1, 0, 0, 0) in rows()


def test_labels_that_differ_beyond_the_column_share_a_row(engine: Engine) -> None:
    decide(engine, "r" * 60 + "|free")
    decide(engine, "r" * 70 + "|free")
    collect()
    assert rows() == [("r" * 50, "free", 2, 0, 0, 0)]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_batch_that_cannot_be_added_holds_up_no_other(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decide(engine)
    decide(engine, minute=1)
    read, spoilt = engine.read_usage, engine.take_usage()[0]

    def spoil(batch: str) -> list[UsageCount]:
        if batch == spoilt:
            raise ValueError("spoilt")
        return read(batch)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "read_usage", spoil)
        assert collect() == Collected(batches=1, requests=1, failed=1)
    assert spoilt in caplog.text
    assert collect() == Collected(batches=1, requests=1)
    assert len(rows()) == 2


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_failure_among_the_counts_undoes_the_name(engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    decide(engine)
    with monkeypatch.context() as patch:
        patch.setattr(UsageBucket, "COUNTS", ("allowed", "none"))
        assert collect().failed == 1
    assert not UsageBatch.objects.exists()
    assert collect() == Collected(batches=1, requests=1)


def test_old_names_are_forgotten(engine: Engine) -> None:
    for name, age in (("young", 8), ("old", 10)):
        UsageBatch.objects.create(batch_id=name)
        UsageBatch.objects.filter(batch_id=name).update(collected_at=timezone.now() - timedelta(days=age))
    collect()
    assert [batch.batch_id for batch in UsageBatch.objects.all()] == ["young"]


def test_the_version_is_published_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    published = []
    monkeypatch.setattr(cache, "republish", lambda *, anew: published.append(anew))
    collect()
    assert published


def test_publishing_that_fails_does_not_keep_counts_waiting(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "republish", fail)
    decide(engine)
    assert collect() == Collected(batches=1, requests=1)
    assert "could not be published" in caplog.text
    assert "EngineUnavailable: made to fail" in caplog.text


def test_no_name_is_forgotten_whose_batch_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock of a collector says."""
    decide(engine, times=2)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "drop_usage", fail)
        with pytest.raises(EngineUnavailable):
            collect()
    UsageBatch.objects.update(collected_at=timezone.now() - timedelta(days=10))
    assert collect() == Collected()
    assert rows() == [("rule", "free", 2, 0, 0, 1)]
    assert not UsageBatch.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("done", [False, True])
def test_a_commit_whose_answer_is_an_error_loses_and_doubles_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """done: the database has committed before it was lost."""
    decide(engine, times=2)
    commit = connection._commit  # type: ignore[attr-defined]

    def fail_to_commit() -> None:
        if UsageBatch.objects.exists():
            if done:
                commit()
            raise OperationalError("made to fail")
        commit()

    with monkeypatch.context() as patch:
        patch.setattr(connection, "_commit", fail_to_commit)
        with pytest.raises(OperationalError):
            collect()
    assert collect() == Collected(1 - done, 2 * (1 - done))
    assert rows() == [("rule", "free", 2, 0, 0, 1)]
    assert engine.take_usage() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="others have limits of their own")
def test_a_collector_that_halts_forever_lets_others_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its machine is gone, and its connection is open."""
    monkeypatch.setattr(databases, "LOCK_SECONDS", 1)
    decide(engine)
    (batch,) = engine.take_usage()
    halted = connection.copy()
    with halted.cursor() as cursor:
        cursor.execute("BEGIN")
        table = UsageBatch._meta.db_table
        cursor.execute(f"INSERT INTO {table} (batch_id, collected_at) VALUES (%s, now())", [batch])
        with pytest.raises(OperationalError, match="lock timeout"):
            collect()
    halted.close()
    assert collect() == Collected(1, 1)


@pytest.mark.django_db(transaction=True)
def test_rejected_inside_a_transaction(engine: Engine) -> None:
    decide(engine)
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        collect()
    assert collect() == Collected(batches=1, requests=1)
