"""A plan for a million requests a second, computed from the results."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, Final

from .tables import Results, failures, number, table

REQUESTS: Final = 1_000_000
#: Maximum load of a server's processor; above it, decisions have to queue.
BUSY: Final = 0.5
#: Web processes that share the million requests.
PROCESSES: Final = 2_000
#: Seconds between two syncs of a key in each process, and for which each remembers a denial.
SYNC: Final = 1.0
MEMORY: Final = 1.0
#: A flood: this many callers send this share of all requests, and are rejected.
FLOODERS, FLOOD = 20, 0.2

ONE, THREE = "ours: engine.check, 1 rule", "ours: engine.check, 3 rules"
NODE: Final = ", cluster node"
PATH: Final = "ours: limiter.check(request), 3 rules"


def plan(results: Results) -> str:
    """Return calls per second, and the processors for them, for several ways to decide a million requests."""
    stage = results["capacity"]
    loads: dict[str, Any] = stage.get("loads", {})
    if ONE not in loads or THREE not in loads:
        return failures(stage).strip() or "Not measured."
    head = ["1,000,000 requests a second", "calls/s to Redis", "server, µs a call", "masters at 50 %"]
    rows = [
        [name, number(calls), number(us, 1), number(ceil(calls * us / 1e6 / BUSY))] for name, calls, us in ways(loads)
    ]
    return table(head, rows) + processes(loads)


def ways(loads: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield name, calls per second, and microseconds of the server for each."""

    one, three = (float(loads.get(name + NODE, loads[name])["allowed"]["server_us"]) for name in (ONE, THREE))
    yield "1 rule, exact", REQUESTS, one
    yield "3 rules in one shard, exact", REQUESTS, three
    yield "3 rules in three shards, exact", 3 * REQUESTS, one
    flood = min(FLOOD * REQUESTS, PROCESSES * FLOODERS / MEMORY)
    yield "3 rules in one shard; a fifth is a flood, which denial memory meets", (1 - FLOOD) * REQUESTS + flood, three
    yield "1 rule for each of very many callers, approximate", REQUESTS, one
    yield "1 rule for everybody, approximate", min(REQUESTS, PROCESSES / SYNC), one


def processes(loads: dict[str, Any]) -> str:
    """Return how many processors the web servers need for decisions."""
    if PATH not in loads:
        return ""
    us = loads[PATH]["allowed"]["client_us"]
    return (
        f"\n\nThe web servers spend {number(us, 1)} µs of processor time on each decision of 3 rules: "
        f"{number(ceil(REQUESTS * us / 1e6))} processors of the many that a million views a second take anyway."
    )
