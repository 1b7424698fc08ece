"""One process: its threads and event loops share one budget, and a fork begins with none."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.local.store import LocalCounters
from tests.making import fork

QUOTA, THREADS, EACH = 3_000, 8, 800
NEAR = Charge("key", Limit(QUOTA, 86_400), usage="near|", sync_interval=0.005)


class Slow(MemoryEngine):
    """Takes a moment, so that other threads come meanwhile."""

    calls = 0

    def check(self, *args: object, **options: object) -> list:  # type: ignore[override,type-arg]
        self.calls += 1
        time.sleep(0.001)
        return super().check(*args, **options)  # type: ignore[arg-type]


def usage(engine: MemoryEngine) -> tuple[int, int]:
    found = [
        (count.allowed, count.rejected)
        for batch in engine.take_usage(now_us=time.time_ns() // 1_000 + 120_000_000)
        for count in engine.read_usage(batch)
    ]
    return sum(allowed for allowed, _ in found), sum(rejected for _, rejected in found)


def test_threads_admit_the_quota_lose_no_count_and_ask_seldom() -> None:
    """Each look at the clock moves it: a counter that is not used for an interval is dropped, and then see below."""
    engine, looks, interval = Slow(), itertools.count(), 500
    counters = LocalCounters(clock=lambda: next(looks) * NEAR.sync_interval / interval)  # type: ignore[operator]
    ours, together = LocalFirstEngine(engine, counters), threading.Barrier(THREADS)

    def hit(_: int) -> int:
        together.wait(300)
        return sum(ours.check([NEAR])[0].allowed for _ in range(EACH))

    admitted = sum(ours.check([NEAR])[0].allowed for _ in range(2))  # the second makes the counter
    with ThreadPoolExecutor(THREADS) as threads:
        admitted += sum(threads.map(hit, range(THREADS)))
    assert engine.calls <= next(looks) / interval + 8 * THREADS  # all threads ask until the first answer has come
    for _ in range(3 * interval):
        admitted += ours.check([NEAR])[0].allowed
    ours.flush()
    assert admitted == QUOTA
    allowed, rejected = usage(engine)
    assert (allowed, allowed + rejected >= THREADS * EACH) == (QUOTA, True)


def test_threads_exceed_a_quota_only_by_first_requests_that_are_under_way() -> None:
    """One of each caller: the second request makes the counter, in which all later ones reserve their costs."""
    ours, together = LocalFirstEngine(Slow(), LocalCounters()), threading.Barrier(THREADS)
    asked = NEAR._replace(limit=Limit(5, 86_400), sync_interval=60.0)

    def hit(caller: int) -> int:
        together.wait(300)
        return sum(ours.check([asked._replace(key=f"{caller}")])[0].allowed for _ in range(5))

    with ThreadPoolExecutor(THREADS) as threads:
        found = [sum(threads.map(hit, [caller] * THREADS)) for caller in range(50)]
    assert {5} <= set(found) <= {5, 6}


def test_threads_and_an_event_loop_share_one_budget() -> None:
    engine = MemoryEngine()
    ours = LocalFirstEngine(engine, LocalCounters())
    asked = NEAR._replace(limit=Limit(10, 86_400), sync_interval=60.0)

    async def hit() -> int:
        twin = ours.to_async()
        found = await asyncio.gather(*(twin.check([asked]) for _ in range(8)))
        return sum(verdict.allowed for [verdict] in found)

    assert [asyncio.run(hit()), sum(ours.check([asked])[0].allowed for _ in range(8))] == [8, 2]
    ours.flush()
    assert engine.peek([asked])[0].remaining == 0


def test_a_fork_owes_nothing_and_has_no_budget() -> None:
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
        os._exit(
            bool(
                counters.by_name or counters.rejections or counters.usage.counts or ours.peek([local])[0].remaining < 5
            )
        )
    held.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (len(ours.counters.by_name), len(ours.counters.rejections), bool(ours.counters.usage.counts)) == (1, 1, True)
    assert ours.peek([local])[0].remaining == 2
