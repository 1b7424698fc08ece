"""The wait for a decision with 32 clients at once, each a process, on loopback.

First at a rate that leaves the machine idle at times; then each client asks again as soon as it has its answer, which
measures the queue for the processors rather than the limiter.
"""

from __future__ import annotations

from typing import Any

from ..registry import FLOOR_NAME, first_caller, reason
from ..setting import Setting, progress
from ..workers import Workers

CLIENTS, CALLS = 32, 400
NAMES = (FLOOR_NAME, "ours: engine.check, 1 rule", "ours: engine.check, 3 rules")
#: Seconds that a client waits between two calls, by case.
PAUSES = {"paced": 0.01, "saturated": 0.0}


def measure(setting: Setting) -> dict[str, Any]:
    """Return by case and name: microseconds at p50 and p99."""
    found: dict[str, dict[str, dict[str, float]]] = {case: {} for case in PAUSES}
    with Workers([0] * CLIENTS, NAMES) as workers:
        progress(f"{CLIENTS} clients")
        failed = dict(workers.failed)
        for name in workers.names:
            try:
                for case, taken in waits(workers, name, setting.few_or(CALLS)).items():
                    found[case][name] = {"p50": taken[len(taken) // 2], "p99": taken[len(taken) * 99 // 100]}
            except RuntimeError as error:
                failed[name] = reason(error)
    return {"clients": CLIENTS, "us": found, "pauses": PAUSES, "failed": failed}


def waits(workers: Workers, name: str, calls: int) -> dict[str, list[float]]:
    """Return microseconds of all decisions, sorted, by case."""
    first = first_caller(name) + 1
    callers = [range(first + client * 20, first + client * 20 + 20) for client in range(CLIENTS)]
    workers.all(name, 20, callers)  # opens connections
    taken = {}
    for case, pause in PAUSES.items():
        answers = workers.all(name, calls, callers, pause=pause)
        taken[case] = sorted(us for answer in answers for us in answer["latencies"])
    return taken
