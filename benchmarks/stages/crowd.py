"""How many requests eight processes get admitted for one caller at the same moment, of a quota of 100."""

from __future__ import annotations

from typing import Any

from ..registry import REMEMBERING, first_caller, reason
from ..setting import Setting
from ..workers import Workers

PROCESSES, CALLS, CROWDS = 8, 40, 5


def measure(setting: Setting) -> dict[str, Any]:
    """By name: how many were admitted in each of some crowds, each with a caller of its own."""
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
    """How many of one crowd were admitted."""
    answers = workers.all(name, CALLS, [[first_caller(name) + 1 + number]] * PROCESSES)
    return sum(answer["admitted"] for answer in answers)
