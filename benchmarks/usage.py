"""What counting adds to a decision: `python -m benchmarks.usage` (REDIS_SERVER and REDIS_URL select the server).

The same charges are decided without labels, with them, and with labels and partitions; for the last, everything is
counted. Some callers come again and again; in a flood, each comes once. Each round times every contestant in
turn; the last column is the median of what each adds to the call that counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, cycle
from statistics import median

import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.partition_notes import WEIGHED_EXACTLY
from example_project.redis_server import redis_url

from .engine import CALLS, timed

ROUNDS = 40
CALLERS = 1_000
LIMIT = Limit(1_000_000, 60)
LABELS = ("api|pro", "address|pro", "everybody|")
KINDS = ("nothing counted", "counts", "everything")

Calls = dict[str, Callable[[], object]]


def contestants(client: redis.Redis) -> Calls:
    """Return the calls to time: each kind of counting for each kind of callers."""
    return {
        f"{kind}, {whose}": _asking(RedisEngine(client, f"{whose}-{kind}"), kind, rules, flood)
        for whose, rules, flood in (("one rule", 1, False), ("three rules", 3, False), ("a flood", 1, True))
        for kind in KINDS
    }


def _asking(engine: RedisEngine, kind: str, rules: int, flood: bool) -> Callable[[], object]:
    """Decide for one caller after the other. The engine was busy before, so it weighs only some of the calls."""
    callers = (f"{number * 2_654_435_761 % 2**32:020}" for number in count()) if flood else cycle(_known())
    engine.publish(1)

    def ask() -> None:
        caller = next(callers)
        charges = [
            Charge(
                f"{label}:{caller}",
                LIMIT,
                usage=None if kind == "nothing counted" else label,
                partition=caller if kind == "everything" else None,
            )
            for label in LABELS[:rules]
        ]
        engine.check(charges, version=1)

    for _ in range(WEIGHED_EXACTLY + CALLERS):
        ask()
    return ask


def _known() -> Iterator[str]:
    return (f"{number:020}" for number in range(CALLERS))


def main() -> None:
    with redis_url() as url, redis.Redis.from_url(url) as client:
        calls = contestants(client)
        for call in calls.values():
            timed(call, client)
        rounds = [[timed(call, client) for call in calls.values()] for _ in range(ROUNDS)]
    print(f"median of {ROUNDS} rounds of {CALLS} calls\n")
    print(f"{'':36}{'us a call':>10}{'in the server':>15}{'more':>9}")
    for place, (name, times) in enumerate(zip(calls, zip(*rounds, strict=True), strict=True)):
        nothing = place - place % len(KINDS)
        ratio = median(mine.call / row[nothing].call for mine, row in zip(times, rounds, strict=True))
        call, script = (median(figures) for figures in zip(*times, strict=True))
        print(f"{name:36}{call:10.1f}{script:15.1f}{ratio - 1:9.0%}")


if __name__ == "__main__":
    main()
