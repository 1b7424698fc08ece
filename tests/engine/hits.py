"""Processes that hit one key at once, by clocks of their own.

Run: python -m tests.engine.hits URL WINDOW PROCESSES HITS APART CASE... Each process makes HITS calls of one charge,
its clock being APART seconds ahead of the one's before it; nothing comes back within WINDOW seconds. Prints, as JSON,
for each case how many of the calls were admitted, and what was counted as usage: [allowed, rejected].
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from django_ratelimiter.engine import Algorithm, Charge, Limit
from tests.counting import engine_at, sums_of

QUOTA = 1_234
DAY = 86_400

#: An algorithm each, with an option that matters.
CASES: dict[str, dict[str, Any]] = {
    "fixed_window": {},
    "fixed_window, first_request": {"anchor": "first_request"},
    "fixed_window, month": {"calendar": "month", "timezone": "Asia/Kathmandu"},
    "sliding_window_log": {},
    "sliding_window_counter": {},
    "sliding_window_slots": {"slots": 12},
    "token_bucket": {},
    "token_bucket, interval": {"refill": "interval"},
    "gcra": {},
    "leaky_bucket": {},
    "concurrency": {},
}


def limit_of(case: str, window: int) -> Limit:
    """A limit of one of the CASES, of about this window in seconds, that gives nothing back during a test."""
    algorithm = Algorithm(case.partition(",")[0])
    options = {"quota": QUOTA, "algorithm": algorithm, **CASES[case]}
    if "calendar" in options:  # its months begin in two weeks
        options |= {"anchor_day": (datetime.now(UTC) + timedelta(days=14)).day % 28 or 28}
    elif "burst" in algorithm.options:  # a unit a window; not so long that it would take centuries to fill up
        options |= {"quota": 1, "burst": QUOTA, "window": far(min(window, 25 * DAY))}
    else:
        options |= {"window": far(window)}
    return Limit(**options)


def far(longest: int) -> int:
    """A window of at most so many seconds whose end, by the clock, is as far away as may be."""
    return max(range(longest * 2 // 3, longest + 1, longest // 50), key=lambda window: window - time.time() % window)


def set_clock(ahead: float) -> None:
    """Put the clock of this process ahead by so many seconds."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + ahead  # type: ignore[assignment]
    time.time_ns = lambda: right_ns() + int(ahead * 1e9)  # type: ignore[assignment]


def hit(url: str, namespace: str, limit: Limit, hits: int, ahead: float) -> int:
    """What one process does; how many of its hits were admitted."""
    charge = Charge("key", limit, usage="rule|")
    set_clock(ahead)
    with engine_at(url, namespace) as engine:
        engine.peek([charge])  # connects
        together.wait()
        return sum(engine.check([charge])[0].allowed for _ in range(hits))


def count(url: str, namespace: str, limit: Limit, processes: int, hits: int, apart: float) -> dict[str, Any]:
    """Let them all hit, and sum up."""
    jobs = [(url, namespace, limit, hits, (number - processes // 2) * apart) for number in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        admitted = sum(pool.starmap(hit, jobs, chunksize=1))
        pool.close()
        pool.join()
    with engine_at(url, namespace) as engine:
        [usage] = sums_of(engine, "allowed", "rejected").values()
    return {"admitted": admitted, "usage": usage}


if __name__ == "__main__":
    url, *numbers = sys.argv[1:6]
    window, processes, hits, apart = map(int, numbers)
    together = multiprocessing.get_context("fork").Barrier(processes, timeout=300)
    found = {
        case: count(url, f"hits-{number}", limit_of(case, window), processes, hits, apart)
        for number, case in enumerate(sys.argv[6:])
    }
    print(json.dumps(found))
