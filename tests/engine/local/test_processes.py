"""Four real processes on one key: within the quota, and with few calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.local.hits import INTERVAL, PROCESSES, QUOTA
from tests.engine.test_processes import outcome

RUNS, MANY = 5, 50
#: Calls of each process until its wants have grown, and until it knows that no more come.
RAMP = 10


@pytest.mark.once
@pytest.mark.parametrize("runs", [RUNS, pytest.param(MANY, marks=pytest.mark.long)])
def test_they_admit_nearly_the_quota_and_never_more(redis_url: str, runs: int) -> None:
    found = outcome("local.hits", redis_url, "approximate", runs)
    assert len(found["runs"]) == runs
    for run in found["runs"]:
        assert_few_calls(run, beside=RAMP * PROCESSES)
    admitted = [sum(len(process["admitted"]) for process in run["processes"]) for run in found["runs"]]
    assert max(admitted) <= QUOTA
    assert min(admitted) >= QUOTA * 9 // 10
    assert found["usage"][0] == sum(admitted)


@pytest.mark.once
@pytest.mark.parametrize("runs", [RUNS, pytest.param(MANY, marks=pytest.mark.long)])
def test_a_flood_of_rejections_asks_once_in_the_time_that_they_are_remembered(redis_url: str, runs: int) -> None:
    found = outcome("local.hits", redis_url, "rejections", runs)
    asked, admitted = 0, [sum(len(process["admitted"]) for process in run["processes"]) for run in found["runs"]]
    assert admitted == [QUOTA] * runs
    for run in found["runs"]:
        for process in run["processes"]:
            rejected = process["calls"][len(process["admitted"]) :]
            process["calls"] = rejected
            asked += len(rejected)
        assert_few_calls(run, beside=QUOTA)
    assert found["usage"][0] == sum(admitted)
    assert found["usage"][1] >= asked > 0  # how many more depends on the machine


def assert_few_calls(run: dict[str, Any], beside: int = 0) -> None:
    """Each process asked once an interval; the server saw these calls, one to connect, and one to tell the rest."""
    for process in run["processes"]:
        assert len(process["calls"]) <= process["lasted"] / INTERVAL + 1 + beside
    assert run["served"] <= sum(len(process["calls"]) for process in run["processes"]) + beside + 2 * PROCESSES
