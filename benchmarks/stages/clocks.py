"""How many requests are allowed if the clock of one of two web servers is wrong by 30 s, with a quota of 100 a minute.

The right one makes 120 requests for a caller, then the wrong one, then the right one again, in a short time.
So an exact limiter allows 100, plus what refills meanwhile.
"""

from __future__ import annotations

from typing import Any

from ..registry import REMEMBERING, first_caller, reason
from ..setting import Setting
from ..workers import Workers

CALLS, CALLERS, OFF = 120, 4, 30
#: Their rules have only one window, an hour.
BY_THE_HOUR = ("3 rules, user and key", "request), 3 rules")


def measure(setting: Setting) -> dict[str, Any]:
    """Return by direction of the error and name: how many were allowed, the most of some callers and their mean."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    failed: dict[str, str] = {}
    for shift in (OFF, -OFF):
        with Workers([0, shift], seconds=60) as workers:
            failed |= workers.failed
            of_this: dict[str, dict[str, float]] = found.setdefault(f"{shift:+d}", {})
            for name in workers.names:
                if name in REMEMBERING or name.endswith(BY_THE_HOUR):
                    continue
                first = first_caller(name) + (1 if shift > 0 else 1 + CALLERS)
                try:
                    counts = [admitted(workers, name, first + caller) for caller in range(CALLERS)]
                except RuntimeError as error:
                    failed[name] = reason(error)
                else:
                    of_this[name] = {"most": max(counts), "mean": sum(counts) / len(counts)}
    return {"off": OFF, "callers": CALLERS, "admitted": found, "failed": failed}


def admitted(workers: Workers, name: str, caller: int) -> int:
    """Return how many requests of this caller were allowed."""
    return int(sum(workers.one(number, name, CALLS, [caller])["admitted"] for number in (0, 1, 0)))
