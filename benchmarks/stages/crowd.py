"""How many requests of one caller are allowed in eight processes at the same time, with a quota of 100."""

from __future__ import annotations

from typing import Any

from ..registry import REMEMBERING, first_caller, reason
from ..setting import Setting
from ..workers import Workers

PROCESSES, CALLS, CROWDS = 8, 40, 5


def measure(setting: Setting) -> dict[str, Any]:
    """Return by name: how many were allowed in each of some crowds, each with its own caller."""
    found: dict[str, list[int]] = {}
    with Workers([0] * PROCESSES) as workers:
        failed = dict(workers.failed)
        for name in workers.names:
            if name in REMEMBERING:
                continue
            try:
                found[name] = [crowd(workers, name, number) for number in range(setting.few_or(CROWDS))]
            except RuntimeError as error:
                failed[name] = reason(error)
    return {"processes": PROCESSES, "asked": PROCESSES * CALLS, "admitted": found, "failed": failed}


def crowd(workers: Workers, name: str, number: int) -> int:
    """Return how many of one crowd were allowed."""
    answers = workers.all(name, CALLS, [[first_caller(name) + 1 + number]] * PROCESSES)
    return sum(answer["admitted"] for answer in answers)
