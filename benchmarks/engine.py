"""The time of a decision: `python -m benchmarks.engine` (REDIS_SERVER and REDIS_URL select the server).

Each round times every contestant in turn, so that other load affects all of them; the table shows the median
round, and its ratio to the floor: the least that any rate limiter does, a token bucket on one key in one short
script, called with `client.evalsha`. It counts no usage, compares no version and is inexact. The time in the script
is also shown, as the server reports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from statistics import median
from typing import NamedTuple

import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine
from django_ratelimiter.engine.redis import RedisEngine
from example_project.redis_server import redis_url

from .floor import FLOOR

ROUNDS, CALLS = 60, 200

BUCKET = Limit(1_000_000, 60, "token_bucket")
CHARGES = [
    Charge("user:42", BUCKET, usage="api|pro"),
    Charge("ip:192.0.2.1", Limit(1_000_000, 60), usage="address|pro"),
    Charge("global", Limit(100_000_000, 3_600, "fixed_window"), usage="everybody|"),
]

#: Rejected, and so recorded at intervals.
NONE_LEFT = Charge("user:7", Limit(1, 86_400), cost=2, usage="tight|pro")

#: Algorithms that store each request are timed with this many; each call adds one and drops another.
ENTRIES = 100
KEEPING_REQUESTS = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.CONCURRENCY)

Calls = dict[str, Callable[[], object]]


def contestants(client: redis.Redis) -> Calls:
    """Return the calls to time, the floor first."""
    sha = client.script_load(FLOOR)
    engine, memory = RedisEngine(client, "benchmark"), MemoryEngine()
    for each in (engine, memory):
        each.publish(1)
    unlabelled = [CHARGES[0]._replace(usage=None)]
    return {
        "floor: one bucket, client.evalsha": lambda: client.evalsha(sha, 1, "benchmark:floor", 1_000_000, 16_666, 1),
        "1 charge, no version, no usage": lambda: engine.check(unlabelled),
        "1 charge": lambda: engine.check(CHARGES[:1], version=1),
        "3 charges": lambda: engine.check(CHARGES, version=1),
        "1 charge, refused": lambda: engine.check([NONE_LEFT], version=1),
        **{f"  {name}": call for algorithm in Algorithm for name, call in by_algorithm(engine, algorithm).items()},
        "1 charge, in memory": lambda: memory.check(CHARGES[:1], version=1),
        "3 charges, in memory": lambda: memory.check(CHARGES, version=1),
    }


def by_algorithm(engine: RedisEngine, algorithm: Algorithm) -> Calls:
    """Return calls with one charge of this algorithm, and of its options that need other steps."""
    if algorithm in KEEPING_REQUESTS:
        limit, times = Limit(ENTRIES, 60, algorithm), count(0, 60_000_000 // ENTRIES)
        charge = Charge("requests", limit, usage="api|pro")
        return {f"{algorithm} of {ENTRIES}": lambda: engine.check([charge], version=1, now_us=next(times))}
    limits = {str(algorithm): Limit(1_000_000, 60, algorithm)}
    if "anchor" in algorithm.options:
        limits[f"{algorithm}, first_request"] = Limit(1_000_000, 60, algorithm, anchor="first_request")
        limits[f"{algorithm}, calendar"] = Limit(100_000_000, algorithm=algorithm, calendar="day")
    if "refill" in algorithm.options:
        limits[f"{algorithm}, interval"] = Limit(1_000_000, 60, algorithm, refill="interval")

    def asking(charge: Charge) -> Callable[[], object]:
        return lambda: engine.check([charge], version=1)

    return {name: asking(Charge("algorithm", limit, usage="api|pro")) for name, limit in limits.items()}


class Round(NamedTuple):
    """Microseconds of one call: in total, and in scripts of the server; means over a round."""

    call: float
    script: float


def timed(call: Callable[[], object], client: redis.Redis) -> Round:
    """Time a round of this call."""
    before = script_time(client)
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - began
    return Round(took / CALLS * 1_000_000, (script_time(client) - before) / CALLS)


def script_time(client: redis.Redis) -> int:
    """Return the server's time in scripts so far, in microseconds."""
    spent: int = client.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"]
    return spent


def main(find: Callable[[redis.Redis], Calls] = contestants) -> None:
    with redis_url() as url, redis.Redis.from_url(url) as client:
        calls = find(client)
        for call in calls.values():
            timed(call, client)
        rounds = [[timed(call, client) for call in calls.values()] for _ in range(ROUNDS)]
        info = client.info("server")
    print(f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info['redis_version']},", end=" ")
    print(f"redis-py {redis.__version__}, median of {ROUNDS} rounds of {CALLS} calls\n")
    print(f"{'':36}{'us a call':>10}{'in the server':>15}{'to the floor':>14}")
    for name, times in zip(calls, zip(*rounds, strict=True), strict=True):
        ratio = median(mine.call / row[0].call for mine, row in zip(times, rounds, strict=True))
        call, script = (median(figures) for figures in zip(*times, strict=True))
        print(f"{name:36}{call:10.1f}{script:15.1f}{ratio:14.2f}")


if __name__ == "__main__":
    main()
