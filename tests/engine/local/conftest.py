"""Processes on a virtual clock, asked from threads and from event loops in turn."""

from __future__ import annotations

from typing import Any

import pytest

from .world import Clock, Counted, OnALoop, Process, over


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Counted:
    return Counted(clock)


@pytest.fixture(params=["threads", "loops"])
def process(request: pytest.FixtureRequest, clock: Clock, engine: Counted) -> Process:
    """Another process on the one engine: `process(denial_memory=…, ask_interval=…, max_counters=…)`."""

    def make(**options: Any) -> Any:
        process = over(engine, clock, **options)
        return process if request.param == "threads" else OnALoop(process)

    return make
