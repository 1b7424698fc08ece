"""Four real processes on one key: within the bound of the documentation, and with few calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.local.hits import INTERVAL, PROCESSES, QUOTA
from tests.engine.local.world import most_within
from tests.engine.test_processes import outcome

RUNS, MANY = 5, 50


@pytest.mark.once
@pytest.mark.parametrize("runs", [RUNS, pytest.param(MANY, marks=pytest.mark.long)])
def test_they_admit_the_quota_and_what_each_but_one_admits_in_two_intervals(redis_url: str, runs: int) -> None:
    found = outcome("local.hits", redis_url, "approximate", runs)
    assert len(found["runs"]) == runs
    for run in found["runs"]:
        moments = [process["admitted"] for process in run["processes"]]
        span = 2 * (INTERVAL + max(process["longest"] for process in run["processes"]))
        most = [most_within(each, span) for each in moments]
        assert sum(map(len, moments)) <= QUOTA + sum(most) - min(most)
        assert_few_calls(run)
    admitted = [sum(len(process["admitted"]) for process in run["processes"]) for run in found["runs"]]
    assert min(admitted) >= QUOTA
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
        assert len(process["calls"]) <= process["lasted"] / INTERVAL + 1
    assert run["served"] <= sum(len(process["calls"]) for process in run["processes"]) + beside + 2 * PROCESSES
