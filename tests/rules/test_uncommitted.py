"""Edits of a transaction that is still open: its own decisions obey them, and nobody else hears or waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import RequestFactory, TestCase

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import StaleRules, Version
from django_ratelimiter.models import AccessEntry, RuleLimit, RuleSetState
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage, tables, uncommitted, versions
from django_ratelimiter.usage.collector.collect import collect

from ..making import save
from .rows import held, make_rule

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds after which a thread that has not ended is taken to wait for a lock. It would wait for ever, so this may be
#: as long as no machine is ever too busy for.
STUCK = 120


@pytest.fixture(autouse=True)
def limit() -> RuleLimit:
    """One rule for all requests, 50 a day, which this process and the engine know."""
    limit = make_rule(quota=50).limits.get()
    assert quota_of(ask()) == 50
    return limit


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was called: "load" and "begin_epoch"."""
    made: list[str] = []
    for owner, name in ((storage, "load"), (versions, "begin_epoch")):
        monkeypatch.setattr(owner, name, _noted(made, name, getattr(owner, name)))
    return made


def _noted(made: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        made.append(name)
        return call(*given)

    return noted


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The versions that the engine was asked with."""
    engine, versions_given = get_engine(), []
    check = engine.check

    def noting(*charges: Any, **options: Any) -> Any:
        versions_given.append(options.get("version"))
        return check(*charges, **options)

    monkeypatch.setattr(engine, "check", noting)
    return versions_given


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged as a warning or worse so far."""
    with caplog.at_level(logging.WARNING, "django_ratelimiter"):
        yield lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def ask() -> Decision:
    return limiter.check(RequestFactory().get("/"))


def quota_of(decision: Decision) -> int:
    [result] = decision.results
    return result.limit.quota


def elsewhere(call: Callable[[], Any]) -> Any:
    """What it returns in a thread that has a connection of its own; it must end while our transaction is open."""
    found: list[Any] = []

    def run() -> None:
        if connection.vendor == "sqlite":  # else it would give up the usual wait, and seem not to have waited
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {10_000 * STUCK}")
        found.append(call())
        connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(STUCK)
    if thread.is_alive():
        connection.close()  # gives up our locks
        thread.join()
        raise AssertionError("It waits for our transaction.")
    return found[0]


@pytest.mark.parametrize("commits", [True, False])
def test_others_decide_by_the_old_rules_until_the_commit_and_ask_nobody(
    commits: bool, limit: RuleLimit, calls: list[str], errors: Callable[[], list[str]]
) -> None:
    before = held()
    with transaction.atomic():
        save(limit, quota=90)
        assert [quota_of(ask()), quota_of(async_to_sync(limiter.acheck)(RequestFactory().get("/")))] == [90, 90]
        assert held() == before
        calls.clear()
        assert elsewhere(lambda: [quota_of(ask()) for _ in range(3)]) == [50, 50, 50]
        assert calls == []
        transaction.set_rollback(not commits)
    assert elsewhere(lambda: quota_of(ask())) == (90 if commits else 50)
    assert held() == storage.committed_version()
    assert "begin_epoch" not in calls
    assert (before == held()) is not commits
    assert RuleSetState.objects.get().epoch == before.epoch  # type: ignore[union-attr]
    assert errors() == []


def test_a_number_that_a_savepoint_has_taken_and_given_back_reaches_nobody(limit: RuleLimit, asked: list[Any]) -> None:
    before = held()
    asked.clear()
    with transaction.atomic():
        with transaction.atomic():
            save(limit, quota=90)
            assert quota_of(ask()) == 90
            transaction.set_rollback(True)
        assert quota_of(ask()) == 50
    assert asked == [None, before]
    assert held() == before


def test_what_needs_no_charge_asks_the_engine_nothing_meanwhile(limit: RuleLimit, asked: list[Any]) -> None:
    AccessEntry.objects.create(kind="ip", value="127.0.0.0/8")
    storage.forget_entries()
    with transaction.atomic():
        limit.delete()
        asked.clear()
        cache._state.checked_at = float("-inf")
        assert ask().access
        AccessEntry.objects.all().delete()
        storage.forget_entries()
        assert ask().results == ()
        assert asked == []
        assert cache.is_version_check_due(cache._state.rules)  # nobody has asked in the place of other threads
        transaction.set_rollback(True)


def test_a_decision_by_uncommitted_rules_confirms_none(limit: RuleLimit) -> None:
    with transaction.atomic():
        limit.save()
        cache._state.confirmed_at = 0.0
        assert quota_of(ask()) == 50
        assert cache._state.confirmed_at == 0.0


@pytest.mark.parametrize("interval", [60_000, -1])
def test_a_process_that_counts_by_itself_tells_of_no_uncommitted_version(limit: RuleLimit, interval: int) -> None:
    before = held()
    with transaction.atomic():
        save(limit.rule, sync_interval_ms=interval)
        for _ in range(3):
            assert ask().allowed
        assert held() == before
        transaction.set_rollback(True)
    assert quota_of(ask()) == 50


def test_remembered_rejections_tell_of_no_uncommitted_version(limit: RuleLimit, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "DENIAL_MEMORY": 60}
    before = held()
    with transaction.atomic():
        save(limit, quota=1)
        assert [ask().allowed for _ in range(3)] == [False, False, False]
        assert held() == before
        transaction.set_rollback(True)
    assert ask().allowed


def test_nothing_that_publishes_again_publishes_an_uncommitted_version(limit: RuleLimit) -> None:
    before = held()
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True):
            save(limit, quota=90)
            cache.switch_enforcement(True)  # it is on; this publishes once more
        assert cache.republish()
        assert held() == before
        assert quota_of(ask()) == 90
        transaction.set_rollback(True)
    assert quota_of(ask()) == 50


def test_an_edit_after_publishing_again_is_part_of_the_version(limit: RuleLimit) -> None:
    with transaction.atomic():
        save(limit, quota=90)
        assert cache.republish()
        save(limit, quota=91)
    assert quota_of(ask()) == 91


@pytest.mark.django_db(transaction=False)
def test_nor_does_collecting_in_a_test_case(limit: RuleLimit) -> None:
    before = held()
    limit.save()
    collect()
    assert held() == before


def test_a_flushed_engine_is_told_of_nothing_uncommitted(limit: RuleLimit) -> None:
    before = held()
    with transaction.atomic():
        save(limit, quota=90)
        get_engine()._client.flushdb()  # type: ignore[attr-defined]
        assert quota_of(ask()) == 90
        stale = cache.reload(StaleRules(None), cache.current_rules())
        assert stale.rules[0].limits[None][0].limit.quota == 90
        assert held() is None
        assert elsewhere(lambda: quota_of(ask())) == 50
        assert held() == before
        transaction.set_rollback(True)


class TestNewEpoch:
    """Where the engine holds a later version than the database, as after a restored backup."""

    @pytest.fixture(autouse=True)
    def ahead(self, monkeypatch: pytest.MonkeyPatch) -> Version:
        # For the lock alone: Redis may take as long as a loaded machine lets it.
        monkeypatch.setattr(versions, "settings", SimpleNamespace(DEADLINE_MS=50))
        monkeypatch.setattr(tables, "_seen", set())  # looking for a table waits for nobody either
        committed = storage.committed_version()
        ahead = Version(committed.number + 40, committed.epoch)
        get_engine().publish(ahead)
        return ahead

    def test_nobody_waits_for_an_edit_under_way_and_it_is_tried_again(
        self, limit: RuleLimit, ahead: Version, calls: list[str], now: list[float]
    ) -> None:
        with transaction.atomic():
            limit.save()
            decisions = elsewhere(lambda: [ask() for _ in range(3)])
            assert [decision.degraded for decision in decisions] == [True] * 3
            assert calls.count("begin_epoch") == 1
            transaction.set_rollback(True)
        now[0] += 2 * cache.RETRY_SECONDS
        assert not ask().degraded
        assert storage.committed_version().epoch > ahead.epoch
        assert held() == storage.committed_version()

    def test_the_wait_of_the_connection_is_as_it_was(self) -> None:
        if connection.vendor != "sqlite":
            pytest.skip("Only SQLite is told how long to wait.")
        assert not ask().degraded
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            assert cursor.fetchone() == (20_000,)

    def test_one_that_is_rolled_back_is_not_logged_and_reaches_nobody(
        self, ahead: Version, errors: Callable[[], list[str]]
    ) -> None:
        committed = storage.committed_version()
        with transaction.atomic():
            assert quota_of(ask()) == 50
            assert held() == ahead
            transaction.set_rollback(True)
        assert storage.committed_version() == committed
        assert errors() == []
        with transaction.atomic():
            assert not ask().degraded
        assert held() == storage.committed_version() != committed
        assert len(errors()) == 1


def test_what_another_thread_has_rolled_back_is_forgotten(limit: RuleLimit) -> None:
    """Its connection stays, as one of a pool does; event loops ask in a thread as long as anybody may be editing."""
    stays: list[Any] = []

    def roll_back() -> None:
        with transaction.atomic():
            limit.save()
            transaction.set_rollback(True)
        stays.append(connections["default"])

    elsewhere(roll_back)
    assert not uncommitted.any_open
    assert quota_of(ask()) == 50
