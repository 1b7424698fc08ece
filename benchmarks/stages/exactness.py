"""How many requests of one caller are allowed at most, with a quota of 100.

In eight processes at the same moment; and if the clock of one of two web servers is wrong by 30 s: the right one makes
120 requests in a minute's window, then the wrong one, then the right one again, in a short time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..registry import REMEMBERING, first_caller, reason
from ..setting import Setting
from ..workers import Workers

PROCESSES, CALLS, CROWDS = 8, 40, 5
CALLS_IN_TURN, CALLERS, OFF = 120, 4, 30
#: Their rules have only one window, an hour.
BY_THE_HOUR = ("3 rules, user and key", "request), 3 rules")


def measure(setting: Setting) -> dict[str, Any]:
    """Return by name how many were allowed at most: in a crowd, and with a wrong clock."""
    failed: dict[str, str] = {}
    with Workers([0] * PROCESSES) as workers:
        crowds = most(workers, failed, partial(crowd, workers), setting.few_or(CROWDS))
    clocks: dict[str, int] = {}
    for number, shift in enumerate((OFF, -OFF)):
        with Workers([0, shift], seconds=60) as workers:
            found = most(workers, failed, partial(in_turn, workers), CALLERS, number)
            clocks |= {name: max(each, clocks.get(name, 0)) for name, each in found.items()}
    clocks = {name: each for name, each in clocks.items() if not name.endswith(BY_THE_HOUR)}
    return {"crowd": crowds, "clock": clocks, "failed": failed}


def most(
    workers: Workers, failed: dict[str, str], admit: Callable[[str, int], int], callers: int, part: int = 0
) -> dict[str, int]:
    """Return by name the most that one of some callers was allowed. part: of a contestant's callers."""
    failed |= workers.failed
    found = {}
    for name in workers.names:
        if name in REMEMBERING:
            continue
        first = first_caller(name) + 1 + part * callers
        try:
            found[name] = max(admit(name, first + caller) for caller in range(callers))
        except RuntimeError as error:
            failed[name] = reason(error)
    return found


def crowd(workers: Workers, name: str, caller: int) -> int:
    """Return how many requests of this caller were allowed at once."""
    return sum(answer["admitted"] for answer in workers.all(name, CALLS, [[caller]] * PROCESSES))


def in_turn(workers: Workers, name: str, caller: int) -> int:
    """Return how many requests of this caller were allowed in turn."""
    return int(sum(workers.one(number, name, CALLS_IN_TURN, [caller])["admitted"] for number in (0, 1, 0)))
