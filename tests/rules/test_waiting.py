"""Reads of tiers, plans, keys and access entries: who makes them, who waits for them, and for how long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import OperationalError, transaction
from django.test.utils import override_settings

from django_ratelimiter.limiter.io import LOOP
from django_ratelimiter.plans import CallerIdentity
from django_ratelimiter.rules import tiers, ttl_cache
from django_ratelimiter.rules.ttl_cache import CallerCache, IdentityCache, KeyCache, OwnCodeFailed, TableCache
from tests.making import fork

from .test_plans import RULES

#: Seconds after which a test that hangs fails.
HANGING = 60

Get = Callable[..., Any]
ALL = pytest.mark.parametrize("kind", ["table", "identity", "key", "caller"])


class Source:
    """What caches read from. The last of `hangs` reads waits for `end`. lasts: seconds of the test's clock, of each."""

    def __init__(self, now: list[float]) -> None:
        self.now, self.lasts, self.hangs = now, 0.0, 0
        self.begun, self.end = Event(), Event()
        self.error: Exception | None = None
        self.during: Callable[[], object] = lambda: None
        self.asked: list[Any] = []

    def read(self, *asked: Any) -> str:
        self.asked.append(asked)
        self.now[0] += self.lasts
        self.during()
        if len(self.asked) == self.hangs:
            self.begun.set()
            assert self.end.wait(HANGING)
        if self.error is not None:
            raise self.error
        return "found"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The settings."""
    given = SimpleNamespace(TIER_CACHE_SECONDS=5.0, DEADLINE_MS=50.0)
    monkeypatch.setattr(ttl_cache, "settings", given)
    return given


@pytest.fixture
def source(now: list[float], given: SimpleNamespace) -> Source:
    return Source(now)


@pytest.fixture
def plan(source: Source) -> Get:
    plans = IdentityCache(source.read, "default", "Plans")
    return lambda user_id="7", read=lambda _name: None: plans.get(user_id, None, read)


@pytest.fixture
def get(source: Source, plan: Get, kind: str) -> Get:
    keys, callers = KeyCache(source.read, "A key"), CallerCache(source.read, "default", "Rows")
    table = TableCache(source.read, "default", "Rows")
    return {"table": table.get, "identity": plan, "key": lambda: keys.get(7), "caller": lambda: callers.get(7)}[kind]


@pytest.fixture
def pool(source: Source) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(4)
    yield pool
    source.end.set()
    pool.shutdown()


class TestReadThatDoesNotEnd:
    @ALL
    @pytest.mark.parametrize("has_connection", [True, False])
    def test_holds_up_no_other_thread(
        self, source: Source, get: Get, pool: ThreadPoolExecutor, kind: str, has_connection: bool, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(ttl_cache, "has_connection", lambda *databases: has_connection)
        source.hangs = 1
        first = pool.submit(get)
        assert source.begun.wait(HANGING)
        reads_itself = kind in ("key", "caller") or (kind == "table" and has_connection)
        assert pool.submit(get).result(HANGING) == ("found" if reads_itself else "default")
        source.end.set()
        assert first.result(HANGING) == "found"

    @pytest.mark.parametrize("kind", ["table", "identity", "key"])
    def test_leaves_the_known_answer_to_others(
        self, source: Source, get: Get, pool: ThreadPoolExecutor, now: list[float]
    ) -> None:
        assert get() == "found"
        source.hangs = 2
        now[0] += 5
        pool.submit(get)
        assert source.begun.wait(HANGING)
        assert get() == "found"
        assert len(source.asked) == 2

    def test_is_forgotten_by_a_child(self, source: Source, plan: Get, pool: ThreadPoolExecutor) -> None:
        source.hangs = 1
        pool.submit(plan)
        assert source.begun.wait(HANGING)
        if not (child := fork()):
            os._exit(plan() != "found")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class TestCalls:
    @ALL
    def test_that_take_long_are_cached_from_their_end(self, source: Source, get: Get, now: list[float]) -> None:
        source.lasts = 5.5
        assert get() == "found"
        now[0] += 4.9
        assert get() == "found"
        assert len(source.asked) == 1

    def test_that_began_later_answer_everybody_who_waits(
        self, source: Source, plan: Get, pool: ThreadPoolExecutor, given: SimpleNamespace, monkeypatch: Any
    ) -> None:
        given.TIER_CACHE_SECONDS, given.DEADLINE_MS = 0.0, 1_000.0 * HANGING
        ticks = count()
        monkeypatch.setattr("time.monotonic", lambda: next(ticks))
        source.hangs = 1
        came = [Event() for _ in range(4)]
        found = [pool.submit(plan, None, lambda _name, event=event: event.set()) for event in came]
        assert all(event.wait(HANGING) for event in came)
        source.end.set()
        assert {each.result(HANGING) for each in found} == {"found"}
        assert len(source.asked) == 2

    def test_that_fail_in_a_row_are_then_made_by_one_thread_in_a_second(
        self, source: Source, plan: Get, now: list[float]
    ) -> None:
        source.error = OwnCodeFailed()
        assert [plan(user_id) for user_id in "abcdef"] == ["default"] * 6
        assert len(source.asked) == 3
        now[0] += ttl_cache.RETRY_SECONDS
        meanwhile: list[str] = []
        source.during = lambda: meanwhile.append(plan("another thread's"))
        assert plan("g") == "default"
        assert (len(source.asked), meanwhile) == (4, ["default"])
        now[0] += ttl_cache.RETRY_SECONDS
        source.error, source.during = None, lambda: None
        assert [plan(user_id) for user_id in "hij"] == ["found"] * 3

    @pytest.mark.django_db(transaction=True)
    def test_that_fail_in_an_open_transaction_stop_no_others(self, source: Source, now: list[float], plan: Get) -> None:
        source.error = OperationalError()
        assert plan("a") == "default"
        now[0] += ttl_cache.RETRY_SECONDS
        with transaction.atomic():
            assert plan("b") == "default"
        source.error = None
        assert plan("c") == "found"

    @pytest.mark.parametrize(("lasts", "asked"), [(0.0, 6), (0.06, 3)])
    def test_for_made_up_keys_that_fail_at_once_stop_no_others(self, source: Source, lasts: float, asked: int) -> None:
        source.error, source.lasts = OwnCodeFailed(), lasts
        keys = KeyCache(source.read, "A key")
        assert [keys.get(number) for number in range(6)] == [None] * 6
        assert len(source.asked) == asked

    def test_for_made_up_keys_count_when_they_end(self, now: list[float], monkeypatch: Any) -> None:
        """Else a flood of them would have a slow resolver to itself."""
        monkeypatch.setattr(ttl_cache, "MISSES_PER_SECOND", 4)
        asked = []

        def find(key: str) -> str | None:
            asked.append(key)
            if key == "slow":
                now[0] += 1.5
                assert keys.get("known") == "found"  # another second has begun
            return "found" if key == "known" else None

        keys = KeyCache(find, "A key")
        assert [keys.get(key) for key in ("slow", "next")] == [None, None]
        assert asked == ["slow", "known"]


#: What the coroutine returns, for whom it was called, and what it waits for.
answer: Any = "pro"
called: list[Any] = []
awaiting = asyncio.Event()


async def plan_of(identity: CallerIdentity) -> Any:
    called.append(identity.user and identity.user.username)
    await awaiting.wait()
    assert await User.objects.acount()
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.django_db(transaction=True)
class TestCoroutines:
    @pytest.fixture(autouse=True)
    def _nobody_called(self) -> None:
        called.clear()
        self.user_id = str(User.objects.create(username="ann").pk)

    def plans(self, callers: int, early: int = 0, *, cancelled: bool = False, **settings: Any) -> list[str]:
        """Return what this many tasks get. While the coroutine waits, the thread of `sync_to_async` must be free.

        early: this many end before its answer comes. cancelled: the first task, for which it was called.
        """

        async def look_up() -> str:
            return str((await LOOP.look_up(tiers.entitlement_for, RULES, self.user_id, None)).tier)

        async def ask() -> list[str]:
            global awaiting
            awaiting = asyncio.Event()
            tasks = [asyncio.create_task(look_up())]
            while not called:
                await asyncio.sleep(0)
            tasks += [asyncio.create_task(look_up()) for _ in range(1, callers)]
            assert await asyncio.wait_for(sync_to_async(lambda: "free")(), HANGING) == "free"
            if cancelled:
                tasks.pop(0).cancel()
            await asyncio.gather(*tasks[callers - early :])
            awaiting.set()
            return await asyncio.gather(*tasks)

        with override_settings(RATELIMITER={"TIER_RESOLVER": f"{__name__}.plan_of", "DEADLINE_MS": 60_000, **settings}):
            return asyncio.run(ask())

    @pytest.mark.parametrize(("callers", "seconds"), [(5, 5), (1, 0)])
    def test_take_no_thread_and_are_called_once(self, callers: int, seconds: float) -> None:
        assert self.plans(callers, TIER_CACHE_SECONDS=seconds) == ["pro"] * callers
        assert called == ["ann"]

    def test_are_waited_for_until_the_deadline(self) -> None:
        assert self.plans(3, early=2, DEADLINE_MS=1) == ["pro", "free", "free"]

    def test_whose_task_is_cancelled_answer_others(self) -> None:
        assert self.plans(2, cancelled=True) == ["pro"]
        assert called == ["ann"]

    @pytest.mark.parametrize("seconds", [5, 0])
    def test_that_fail_are_no_answer(self, monkeypatch: Any, caplog: Any, seconds: float) -> None:
        monkeypatch.setattr(f"{__name__}.answer", ConnectionError())
        assert self.plans(1, TIER_CACHE_SECONDS=seconds) == ["free"]
        assert f"RATELIMITER['TIER_RESOLVER'] failed: ConnectionError at {__file__}:" in caplog.text
