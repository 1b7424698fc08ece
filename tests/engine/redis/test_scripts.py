"""The script, put together from the frame and the steps of the algorithms."""

from __future__ import annotations

import pytest

from django_ratelimiter.engine import Algorithm
from django_ratelimiter.engine.algorithms import STEPS
from django_ratelimiter.engine.redis import scripts

STEPS_IN_LUA = {"whole", "look", "spend", "wait", "reset", "refund"}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_an_algorithm_has_every_step_and_no_other(algorithm: Algorithm) -> None:
    """A misspelled one would not be missed: the script would go on without it."""
    assert set(scripts._steps_of(algorithm)) == STEPS_IN_LUA
    assert all(callable(getattr(STEPS[algorithm], step)) for step in (*STEPS_IN_LUA - {"whole"}, "store"))


def test_the_frame_asks_for_every_step() -> None:
    frame = (scripts._FRAMES / "check.lua").read_text("utf-8")
    assert {match[1] for match in scripts._STEP.finditer(frame)} == {*STEPS_IN_LUA, "traits", "count", "rejected"}
    assert b"\n--@" not in scripts.CHECK
