"""One process: its threads and event loops share what is in hand, and a fork begins with nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.call import Call
from django_ratelimiter.engine.local.engine import AsyncLocalFirstEngine, LocalFirstEngine
from django_ratelimiter.engine.local.store import LocalCounters
from tests.clusters import until
from tests.counting import sums_of
from tests.making import fork

QUOTA, THREADS, EACH = 3_000, 8, 800
NEAR = Charge("key", Limit(QUOTA, 86_400), usage="near|", sync_interval=0.005)


class Slow(MemoryEngine):
    """Takes a moment, so that other threads come meanwhile: they ask, too, but fetch nothing."""

    fetches = 0

    def check(self, charges: Any, **options: Any) -> list:  # type: ignore[override,type-arg]
        self.fetches += bool(charges.wants)
        time.sleep(0.001)
        return super().check(charges, **options)


def test_threads_keep_to_the_quota_lose_no_count_and_ask_seldom() -> None:
    """Each look at the clock moves it."""
    engine, looks, interval = Slow(), itertools.count(), 500
    counters = LocalCounters(clock=lambda: next(looks) * NEAR.sync_interval / interval)  # type: ignore[operator]
    ours, together = LocalFirstEngine(engine, counters), threading.Barrier(THREADS)

    def hit(_: int) -> int:
        together.wait(300)
        return sum(ours.check([NEAR])[0].allowed for _ in range(EACH))

    with ThreadPoolExecutor(THREADS) as threads:
        admitted = sum(threads.map(hit, range(THREADS)))
    assert engine.fetches <= 2 * next(looks) / interval
    ours.flush()
    assert 0 < admitted <= QUOTA
    assert engine.peek([NEAR])[0].remaining == QUOTA - admitted
    assert sums_of(engine, "allowed", "rejected") == {"near": (admitted, THREADS * EACH - admitted)}


def test_threads_and_an_event_loop_share_the_units() -> None:
    engine = MemoryEngine()
    ours = LocalFirstEngine(engine, LocalCounters())
    asked = NEAR._replace(limit=Limit(1_000, 86_400), sync_interval=60.0)

    async def hit() -> int:
        twin = ours.to_async()
        found = await asyncio.gather(*(twin.check([asked]) for _ in range(8)))
        return sum(verdict.allowed for [verdict] in found)

    assert [asyncio.run(hit()), sum(ours.check([asked])[0].allowed for _ in range(8))] == [8, 8]
    ours.flush()
    assert engine.peek([asked])[0].remaining == 1_000 - 16


def test_the_units_of_a_cancelled_task_are_known() -> None:
    """It is cancelled while its call is under way, on an engine that answers later."""

    class Late:
        def __init__(self) -> None:
            self.memory, self.may_answer = MemoryEngine(), asyncio.Event()

        async def check(self, charges: Call, **options: Any) -> Any:
            answer = self.memory.check(charges, **options)
            if charges.wants:
                await self.may_answer.wait()
            return answer

    async def cancel() -> int:
        late = Late()
        twin = AsyncLocalFirstEngine(late, LocalCounters())
        asked = NEAR._replace(sync_interval=60.0)
        await twin.check([asked])
        task = asyncio.create_task(twin.check([asked]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        late.may_answer.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        LocalFirstEngine(late.memory, twin.counters).flush()
        return late.memory.peek([asked])[0].remaining

    assert asyncio.run(cancel()) == QUOTA - 2


def test_a_thread_gives_back_what_an_idle_process_has_in_hand_and_ends() -> None:
    engine, counters = MemoryEngine(), LocalCounters()
    ours, asked = LocalFirstEngine(engine, counters), NEAR._replace(sync_interval=0.05)
    ours.check([NEAR._replace(sync_interval=None)])
    assert counters.thread is None
    for _ in range(41):
        ours.check([asked])
    until(lambda: engine.peek([asked])[0].remaining == QUOTA - 42, "all units are given back")
    until(lambda: counters.thread is None, "the thread has ended")
    assert sums_of(engine, "allowed", "rejected") == {"near": (42, 0)}


def test_the_thread_ends_once_its_process_has_dropped_everything() -> None:
    engine, counters = MemoryEngine(), LocalCounters()
    ours = LocalFirstEngine(engine, counters)
    for _ in range(3):
        ours.check([NEAR._replace(sync_interval=60.0)])
    thread = counters.thread
    assert thread
    counters.clear()
    counters.thread = another = threading.Thread()  # as if it had begun meanwhile
    counters.usage.add(1, "rule|\na")
    thread.join(60)
    assert (thread.is_alive(), counters.thread) == (False, another)
    assert counters.usage, "left to the other one"


def test_a_fork_has_nothing_in_hand() -> None:
    engine = MemoryEngine()
    ours = LocalFirstEngine(engine, LocalCounters(60.0))
    tight, local = Charge("tight", Limit(1, 86_400)), Charge("local", Limit(5, 86_400), sync_interval=-1.0)
    for _ in range(3):
        ours.check([NEAR._replace(sync_interval=60.0)])
        ours.check([tight])
        ours.check([local])
    held = ours.counters.memory._lock  # by another thread, which the child does not have
    held.acquire()
    child = fork()
    if not child:
        signal.alarm(10)
        counters = ours.counters
        os._exit(bool(counters.hands or counters.usage.lease() or ours.peek([local])[0].remaining < 5))
    held.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(ours.counters.hands) == 2
    assert ours.peek([local])[0].remaining == 2
