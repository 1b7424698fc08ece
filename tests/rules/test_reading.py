"""Nobody waits without a bound for a read of the rules, and who has a connection reads by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext
from django.db import connection, transaction
from django.test import RequestFactory

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import StaleRules
from django_ratelimiter.exceptions import RulesUnavailable
from django_ratelimiter.models import Rule, RuleLimit
from django_ratelimiter.rules import cache, reading
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.stored import published, storage, tables
from django_ratelimiter.rules.ttl_cache import NoAnswer

from ..limiter.test_limiter import Broken
from ..making import update
from .rows import make_rule

pytestmark = pytest.mark.django_db(transaction=True)


class StuckDatabase:
    """A database that does not answer threads without a connection, as an empty pool, until `answers` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.is_asked, self.answers = threading.Event(), threading.Event()
        self.is_stuck: Callable[[], bool] = lambda: connection.connection is None
        self.load = storage.load
        monkeypatch.setattr(storage, "load", self.ask)

    def ask(self) -> RuleSet:
        self.asked.append(threading.current_thread().name)
        if self.is_stuck():
            self.is_asked.set()
            assert self.answers.wait(60)
        return self.load()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch, settings: Any) -> RuleSet:
    """Rules that this process knows, and that another process has edited since."""
    settings.RATELIMITER = {**settings.RATELIMITER, "TIER_CACHE_SECONDS": 3_600}
    monkeypatch.setattr(cache, "turns", reading.Turns())
    monkeypatch.setattr(published, "write_copy", lambda: None)
    monkeypatch.setattr(reading, "PATIENCE", 60.0)
    cache.access_list()
    make_rule(quota=5)
    rules = cache.current_rules()
    update(RuleLimit, quota=7)
    cache.mark_confirmed(rules)
    monkeypatch.setattr(
        "django_ratelimiter.rules.cache._state.outdated", False
    )  # as in a process that has not been told
    return rules


@pytest.fixture
def database(rules: RuleSet, monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckDatabase]:
    database = StuckDatabase(monkeypatch)
    yield database
    database.answers.set()
    for thread in threading.enumerate():
        if thread.name == "ratelimiter-read":
            thread.join()  # its answer counts, also in another test


def behind() -> StaleRules:
    return StaleRules(*storage.committed_version())


def connected(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread that has made a query."""
    try:
        Rule.objects.count()
        return function(*arguments)
    finally:
        connection.close()


def quota_of(rules: RuleSet) -> int:
    return rules.rules[0].limits[None][0].limit.quota


def ask() -> Decision:
    return limiter.check(RequestFactory().get("/"))


def test_a_read_that_was_answered_is_no_longer_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, answered = reading.Turns(), []
    reads = turns._reads
    monkeypatch.setattr(reading.connections, "close_all", lambda: answered.extend(each.done() for each in reads))
    assert turns.take("default", lambda: 7, lambda: None, bool, apart=True) == 7
    assert (answered[:1], reads) == ([False], [])


def test_threads_with_a_connection_read_while_another_waits_for_one(
    database: StuckDatabase, rules: RuleSet, threads: ThreadPoolExecutor
) -> None:
    stale = behind()
    without: Future[RuleSet] = threads.submit(cache.reload, stale, rules)
    assert database.is_asked.wait(60)
    having = [threads.submit(connected, cache.reload, stale, rules) for _ in range(3)]
    found = [each.result(60) for each in (*having, without)]
    assert not database.answers.is_set()
    assert [*map(quota_of, found)] == [7] * 4
    assert len(database.asked) == 2  # the others took the answer of the first that had a connection


def test_a_task_whose_thread_has_a_connection_decides_while_another_waits(
    database: StuckDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        cache.settings.__dict__, "DEADLINE_MS", 100.0
    )  # of the loop's tasks; the engine is made already

    async def decide(has_connection: bool) -> Decision:
        async with ThreadSensitiveContext():
            if has_connection:
                await asyncio.to_thread(database.is_asked.wait, 60)
                await Rule.objects.acount()
            return await limiter.acheck(RequestFactory().get("/"))

    async def decide_both() -> list[Decision]:
        return await asyncio.gather(decide(False), decide(True))

    decisions = asyncio.run(decide_both())
    assert not database.answers.is_set()
    assert [each.results[0].limit.quota for each in decisions] == [7, 7]
    assert not any(each.degraded for each in decisions)


class TestDatabaseThatHangs:
    @pytest.fixture(autouse=True)
    def _short_patience(self, monkeypatch: pytest.MonkeyPatch, database: StuckDatabase) -> None:
        monkeypatch.setattr(reading, "PATIENCE", 0.05)
        monkeypatch.setattr(reading, "FIRST_PAUSE", 600.0)
        database.is_stuck = lambda: True
        connection.close()  # what has one reads by itself

    def test_failure_policies_decide_meanwhile(self, threads: ThreadPoolExecutor) -> None:
        decisions = [each.result(60) for each in [threads.submit(ask) for _ in range(4)]]
        assert [(each.degraded, each.results[0].limit.quota) for each in decisions] == [(True, 5)] * 4

    def test_its_late_answer_counts_and_is_signalled(
        self, database: StuckDatabase, rules: RuleSet, threads: ThreadPoolExecutor
    ) -> None:
        signalled = threading.Event()

        def note(**_signal: Any) -> None:
            signalled.set()

        cache.rules_changed.connect(note)
        with pytest.raises(RulesUnavailable):
            threads.submit(cache.reload, behind(), rules).result(60)
        assert cache.current_rules() is rules
        signalled.clear()
        database.answers.set()
        assert signalled.wait(60)
        assert quota_of(cache.current_rules()) == 7

    def test_without_redis_the_known_rules_stay(
        self, database: StuckDatabase, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
    ) -> None:
        monkeypatch.setattr(get_engine(), "check", Broken().check)
        monkeypatch.setattr("django_ratelimiter.rules.cache._state.confirmed_at", 0.0)  # they are aged
        decisions = [threads.submit(connected, ask).result(60) for _ in range(4)]  # also with a connection
        assert [(each.degraded, each.results[0].limit.quota) for each in decisions] == [(True, 5)] * 4
        assert [*database.asked] == ["ratelimiter-read"]

    def test_it_is_asked_again_ever_more_rarely(self, monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
        monkeypatch.setattr(reading, "FIRST_PAUSE", 1.0)
        turns, asked, answers = reading.Turns(), list[float](), threading.Event()

        def begin(**given: Any) -> threading.Thread:  # a busy machine starts threads late
            asked.append(now[0] - 1_000)
            return threading.Thread(**given)

        monkeypatch.setattr(reading, "Thread", begin)
        for _ in range(600):
            turns.take("default", partial(answers.wait, 60), lambda: None, lambda: None, apart=True)
            now[0] += 0.25
        assert (asked, turns.is_hanging) == ([0, 2, 6, 14, 30, 62, 122], True)
        with transaction.atomic():  # which reads by itself
            assert turns.take("default", lambda: 1, lambda: None, lambda: None, apart=True) == 1
        assert not turns.is_hanging
        answers.set()

    def test_look_ups_go_on_when_another_connection_answers(
        self, monkeypatch: pytest.MonkeyPatch, now: list[float]
    ) -> None:
        turns, answers = reading.Turns(), threading.Event()
        monkeypatch.setattr(tables, "turns", turns)
        turns.take("default", answers.wait, lambda: None, lambda: None, apart=True)
        now[0] += 1
        with pytest.raises(NoAnswer):
            tables.must_exist("AccessEntry")
        while turns.is_hanging:
            now[0] += reading.MAX_PAUSE
            with suppress(NoAnswer):
                tables.must_exist("AccessEntry")
            threading.Event().wait(0.01)
        answers.set()
