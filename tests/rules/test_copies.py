"""Rules live where decisions live: a process that cannot read the database decides by the copy in Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from django.contrib.auth.models import User
from django.core import signing
from django.core.management.sql import emit_post_migrate_signal
from django.db import OperationalError, connection
from django.test import Client, RequestFactory

from django_ratelimiter import backend, limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.decision import Decision
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.engine import EngineUnavailable, MemoryEngine, StaleRules
from django_ratelimiter.models import AccessEntry, RuleSetState, Tier, TierAssignment
from django_ratelimiter.rules import cache, reading, tiers
from django_ratelimiter.rules.stored import published, storage, versions
from django_ratelimiter.usage.collector.collect import collect

from ..limiter.test_limiter import Broken
from ..making import failing, request_of, save
from .rows import held, make_rule

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "{rl:0}:rules"
Begin = Callable[..., AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Begin a process, which knows nothing."""

    def begin() -> None:
        monkeypatch.setattr(cache, "_state", vars(cache)["_State"]())
        monkeypatch.setattr(cache, "copying", reading.Turns())
        monkeypatch.setattr(published, "_latest", None)
        monkeypatch.setattr(published, "_entries_at", float("-inf"))
        storage.forget_entries()
        tiers.forget()

    monkeypatch.setattr(reading, "PATIENCE", 60.0)
    begin()
    return begin


@pytest.fixture
def begin_away(begin: Callable[[], None]) -> Begin:
    """Begin a process whose queries fail until the block ends. known: it is the process of before."""

    @contextmanager
    def begin_away(*, known: bool = False) -> Iterator[None]:
        if not known:
            begin()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("django.db.backends.utils.CursorWrapper.execute", failing(OperationalError("away")))
            yield

    return begin_away


def ask(**headers: Any) -> Decision:
    return limiter.check(RequestFactory().get("/", **headers))


def without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("check", "publish", "read_rules", "write_rules"):
        monkeypatch.setattr(get_engine(), method, Broken().check, raising=False)


class TestProcessWithoutDatabase:
    def test_decides_by_the_rules_in_force(self, begin_away: Begin) -> None:
        make_rule(quota=2, failure_policy="closed")
        with begin_away():
            decisions = [ask() for _ in range(3)]
        assert [(each.allowed, each.degraded) for each in decisions] == [(True, False)] * 2 + [(False, False)]
        assert decisions[0].version == storage.committed_version()

    def test_denies_whom_entries_deny(self, begin_away: Begin, redis_client: redis.Redis) -> None:
        make_rule()
        entry = AccessEntry.objects.create(kind="ip", value="192.0.2.1", reason="sold passwords")
        with begin_away():
            denied = ask(REMOTE_ADDR="192.0.2.1").access
            assert denied
            assert (denied.pk, denied.reason) == (entry.pk, "")
            assert ask(REMOTE_ADDR="192.0.2.2").access is None
        assert "sold" not in str(signing.loads(redis_client.get(KEY).decode(), salt=published.FORMAT))  # type: ignore[union-attr]

    def test_gives_the_default_tier_and_marks_it(self, begin_away: Begin) -> None:
        """Assignments are not in the copy."""
        Tier.objects.create(slug="free", name="Free", default_for="authenticated")
        gold, ann = Tier.objects.create(slug="gold", name="Gold", rank=1), User.objects.create(username="ann")
        make_rule(partition_by=["user"])
        TierAssignment.objects.create(tier=gold, user=ann)
        with begin_away():
            decision = limiter.check(request_of(ann))
        assert decision.degraded
        assert [str(each.tier) for each in decision.results] == ["free"]

    def test_leaves_stale_rules_to_failure_policies(self, begin_away: Begin) -> None:
        make_rule(failure_policy="closed")
        version = storage.committed_version()
        get_engine().publish(version._replace(number=version.number + 1))
        with begin_away():
            decision = ask()
        assert (decision.unavailable, decision.degraded) == (True, True)

    def test_uses_a_later_copy(self, begin_away: Begin, now: list[float]) -> None:
        limit = make_rule().limits.get()
        with begin_away():
            assert ask().results[0].limit.quota == 5
        limit.quota = 7
        limit.save()  # as another process does
        with begin_away(known=True):
            now[0] += cache.RETRY_SECONDS + 0.1
            assert ask().results[0].limit.quota == 7

    def test_uses_the_database_once_it_answers(self, begin_away: Begin, now: list[float]) -> None:
        make_rule()
        with begin_away():
            assert cache.current_rules().is_copy
        now[0] += cache.RETRY_SECONDS + 0.1
        assert not cache.current_rules().is_copy

    @pytest.mark.parametrize(
        "text",
        ["", "x", signing.dumps([1], salt=published.FORMAT), signing.dumps([1, 2, {}, []])],
        ids=["empty", "not signed", "another form", "another format"],
    )
    def test_ignores_a_copy_that_is_none(
        self,
        begin_away: Begin,
        redis_client: redis.Redis,
        caplog: pytest.LogCaptureFixture,
        now: list[float],
        text: str,
    ) -> None:
        make_rule()
        redis_client.set(KEY, text)
        with begin_away():
            for _ in range(3):
                assert [each.rule.slug for each in ask().results] == ["without-rules"]
                now[0] += 2
        assert len([each for each in caplog.messages if "did not sign it" in each]) == 1

    def test_ignores_a_copy_of_another_secret(self, begin_away: Begin, settings: Any) -> None:
        make_rule()
        settings.SECRET_KEY = "another"
        with begin_away():
            assert not cache.current_rules().is_copy
        settings.SECRET_KEY_FALLBACKS = ["only for the tests"]
        with begin_away():
            assert cache.current_rules().is_copy


class TestDatabaseThatHangsAtTheStart:
    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """The database answers from then on."""
        monkeypatch.setattr(reading, "PATIENCE", 0.05)
        turns = reading.Turns()
        for module in (cache, storage.tables):
            monkeypatch.setattr(module, "turns", turns)
        answers, load = threading.Event(), storage.load
        monkeypatch.setattr(storage, "load", lambda: answers.wait(60) and load())
        yield answers
        answers.set()
        for thread in threading.enumerate():
            if thread.name == "ratelimiter-read":
                thread.join()  # its answer counts, also in another test

    def test_requests_wait_once_and_then_decide_by_the_copy(
        self,
        answers: threading.Event,
        begin: Callable[[], None],
        check: Callable[..., Decision],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        gold = Tier.objects.create(slug="gold", name="Gold")
        make_rule(limit={"tier": gold})
        make_rule("all", quota=1)
        AccessEntry.objects.create(kind="ip", value="192.0.2.1")
        begin()
        monkeypatch.setattr(cache, "copying", Mock(take=lambda _using, read, *_given, **_options: read()))
        connection.close()  # a thread that has one reads by itself
        decisions = [check(RequestFactory().get("/")) for _ in range(2)]
        assert [(each.allowed, each.degraded) for each in decisions] == [(True, True), (False, True)]
        assert check(RequestFactory().get("/", REMOTE_ADDR="192.0.2.1")).access
        assert connection.connection is None  # nothing else has asked the database, either
        assert cache.current_rules().is_copy


class TestNeitherStore:
    @pytest.mark.parametrize(("answer", "status"), [("open", 200), ("closed", 503)])
    def test_the_setting_decides(
        self,
        begin_away: Begin,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        settings: Any,
        answer: str,
        status: int,
    ) -> None:
        settings.RATELIMITER = {**settings.RATELIMITER, "WITHOUT_RULES": answer}
        make_rule()
        without_redis(monkeypatch)
        with begin_away():
            response = Client().get("/items/1/")
        decision = response.wsgi_request.ratelimit  # type: ignore[attr-defined]
        assert (response.status_code, decision.degraded, decision.unavailable) == (status, True, status == 503)
        assert response.headers["X-RateLimit-Degraded"] == "without-rules"
        assert response.headers.get("Retry-After") == ("1" if status == 503 else None)
        assert f"Neither the database nor Redis has returned rules: WITHOUT_RULES, '{answer}', decides." in caplog.text

    def test_rates_in_code_still_hold(self, begin_away: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
        view = ratelimit(key="ip", rate="4/m", block=False)(lambda request: request.limited)
        without_redis(monkeypatch)
        with begin_away():
            assert [view(RequestFactory().get("/")) for _ in range(3)] == [False, False, True]  # half of the quota


class TestWriting:
    def test_nobody_who_can_read_the_database_reads_it(
        self, begin: Callable[[], None], monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis, now: list[float]
    ) -> None:
        read: list[str] = []
        limit = make_rule().limits.get()
        for situation in ("new", "stale", "flushed", "without Redis"):
            if situation == "new":
                begin()
            elif situation == "stale":
                limit.save()
                monkeypatch.setattr("django_ratelimiter.rules.cache._state.outdated", False)
            elif situation == "flushed":
                redis_client.flushdb()
            else:
                without_redis(monkeypatch)
                now[0] += 60
            monkeypatch.setattr(get_engine(), "read_rules", lambda: read.append("read"), raising=False)
            assert ask().results
        assert read == []

    def test_each_collection_writes_it(self, redis_client: redis.Redis, begin_away: Begin) -> None:
        make_rule()
        AccessEntry.objects.bulk_create([AccessEntry(kind="ip", value="192.0.2.1")])  # which sends no signal
        redis_client.delete(KEY)
        collect()
        assert redis_client.ttl(KEY) == -1
        with begin_away():
            assert ask(REMOTE_ADDR="192.0.2.1").access

    def test_a_later_copy_is_not_replaced_for_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another process publishes while this one has read the earlier version."""
        limit = make_rule().limits.get()
        rows, committed = storage.access_entries, []

        def commit_meanwhile() -> Any:
            if not committed:
                committed.append(1)
                save(limit, quota=9)
            return rows()

        monkeypatch.setattr(storage, "access_entries", commit_meanwhile)
        published.write_copy()
        found = published.read_copy()
        assert found
        assert found.rules.version == storage.committed_version()

    def test_a_save_stands_if_it_cannot_be_written(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(get_engine(), "write_rules", failing(EngineUnavailable("READONLY")), raising=False)
        make_rule()
        assert held() == storage.committed_version()
        assert not versions.last_publish_failed()
        assert "The copy of the rules in Redis could not be renewed: READONLY" in caplog.text

    def test_the_memory_engine_has_none(self, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any) -> None:
        monkeypatch.setattr(backend, "_engine", MemoryEngine())
        with django_assert_num_queries(0):
            published.write_copy()
        assert published.read_copy() is None


class TestFlush:
    @pytest.fixture
    def flush(self) -> Callable[[], None]:
        """Delete all rules without a signal, and send the one that `flush` sends."""

        def flush() -> None:
            with connection.cursor() as cursor:
                for table in ("rulelimit", "rule", "rulesetversion", "rulesetstate"):
                    cursor.execute(f"DELETE FROM django_ratelimiter_{table}")
            emit_post_migrate_signal(verbosity=0, interactive=False, db="default")

        return flush

    def test_no_process_decides_by_deleted_rules(
        self, flush: Callable[[], None], begin: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_rule()
        assert ask().results
        other = vars(cache)["_state"]
        begin()
        assert ask().results
        flush()
        assert not ask().results
        monkeypatch.setattr(cache, "_state", other)
        cache.mark_confirmed(other.rules)
        with pytest.raises(StaleRules):
            get_engine().check([], version=other.rules.version)

    def test_nor_does_a_test_that_follows(
        self, flush: Callable[[], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(backend, "are_tests_running", lambda: True)
        make_rule()
        assert ask().results
        flush()
        assert not RuleSetState.objects.exists()
        assert not ask().results
        make_rule(quota=1)
        assert ask().results[0].limit.quota == 1
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
