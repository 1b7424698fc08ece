"""Four real processes on one key: within the quota, and with few calls."""

from __future__ import annotations

import pytest

from tests.engine.local.hits import INTERVAL, PROCESSES, QUOTA
from tests.engine.test_processes import outcome

RUNS, MANY = 5, 50
#: Calls of each process until its wants have grown, and until it knows that no more come.
RAMP = 10


@pytest.mark.once
@pytest.mark.parametrize("runs", [RUNS, pytest.param(MANY, marks=pytest.mark.long)])
def test_they_admit_nearly_the_quota_and_never_more(redis_url: str, runs: int) -> None:
    found = outcome("local.hits", redis_url, runs)
    assert len(found["runs"]) == runs
    for run in found["runs"]:
        for process in run["processes"]:
            assert len(process["calls"]) <= process["lasted"] / INTERVAL + 1 + RAMP * PROCESSES
    admitted = [sum(len(process["admitted"]) for process in run["processes"]) for run in found["runs"]]
    assert max(admitted) <= QUOTA
    assert min(admitted) >= QUOTA * 9 // 10
    assert found["usage"][0] == sum(admitted)
