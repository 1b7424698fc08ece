"""Processes that hit one key of which they fetch units: `python -m tests.engine.local.hits URL RUNS`.

It prints for each run a JSON object: for each process `admitted` and `calls` (when each was, in seconds of a clock that
all share), and `lasted`: all of them, SECONDS at least and until each has made CALLS calls and was rejected.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
from typing import Any

import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.local.store import LocalCounters
from django_ratelimiter.engine.redis import RedisEngine
from tests.counting import sums_of

PROCESSES, QUOTA, INTERVAL, SECONDS, PAUSE = 4, 150, 0.05, 0.25, 0.001
DAY, CALLS = 86_400, 20
CHARGE = Charge("key", Limit(QUOTA, DAY), usage="rule|", sync_interval=INTERVAL)
together = multiprocessing.get_context("fork").Barrier(PROCESSES)


class Watched(RedisEngine):
    """Notes when it is asked."""

    calls: list[float]

    def check(self, *args: Any, **options: Any) -> Any:
        self.calls.append(time.monotonic())
        return super().check(*args, **options)


def run(url: str, number: int) -> dict[str, Any]:
    """One process in one run."""
    with redis.Redis.from_url(url) as client:
        engine = Watched(client, "hits")
        engine.peek([CHARGE])  # connects
        engine.calls = []
        ours = LocalFirstEngine(engine, LocalCounters())
        charge, chance = CHARGE._replace(key=f"key-{number}"), random.Random()
        admitted = []
        together.wait(300)
        began, is_used_up = time.monotonic(), False
        while not is_used_up or time.monotonic() < began + SECONDS or len(engine.calls) < CALLS:
            if ours.check([charge], version=1)[0].allowed:
                admitted.append(time.monotonic())
            else:
                is_used_up = True
            time.sleep(chance.random() * PAUSE)
        calls, lasted = list(engine.calls), time.monotonic() - began
        ours.flush()
        return {"admitted": admitted, "calls": calls, "lasted": lasted}


def main(url: str, runs: int) -> None:
    with redis.Redis.from_url(url) as client, multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        RedisEngine(client, "hits").publish(1)
        found = []
        for number in range(runs):
            found.append({"processes": pool.starmap(run, [(url, number)] * PROCESSES, chunksize=1)})
        pool.close()  # to end one by a signal, as its context does, may last for ever under coverage
        pool.join()
        engine = RedisEngine(client, "hits")
        [usage] = sums_of(engine, "allowed", "rejected").values()
        print(json.dumps({"runs": found, "usage": usage}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
