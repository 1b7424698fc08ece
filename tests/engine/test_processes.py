"""Processes on one key admit exactly its quota, by the server's own clock and whatever theirs show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from django_ratelimiter.engine import Algorithm
from tests.engine.hits import CASES, DAY, QUOTA, limit_of

#: Calls of each of eight processes, of each of three: in all, more than the quota, and the last ones are rejected.
OF_EIGHT, OF_THREE = 250, 600


def outcome(program: str, *arguments: object) -> Any:
    """What a program beside this file prints."""
    command = [sys.executable, "-W", "error", "-m", f"tests.engine.{program}", *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, stdout=subprocess.PIPE, timeout=600)
    return json.loads(done.stdout)


def test_no_algorithm_is_left_out() -> None:
    limits = [limit_of(case, 60) for case in CASES]
    assert {limit.algorithm for limit in limits} == set(Algorithm)
    assert {limit.capacity for limit in limits} == {QUOTA}


def test_eight_processes_admit_exactly_the_quota(redis_url: str) -> None:
    found = outcome("hits", redis_url, 366 * DAY, 8, OF_EIGHT, 0, *CASES)
    assert found == {case: {"admitted": QUOTA, "usage": [QUOTA, 8 * OF_EIGHT - QUOTA]} for case in CASES}


def test_three_processes_whose_clocks_are_30_seconds_apart_admit_no_more(redis_url: str) -> None:
    """The window is shorter than what lies between the clocks of the first and the last."""
    found = outcome("hits", redis_url, 58, 3, OF_THREE, 30, *CASES)
    assert found == {case: {"admitted": QUOTA, "usage": [QUOTA, 3 * OF_THREE - QUOTA]} for case in CASES}
