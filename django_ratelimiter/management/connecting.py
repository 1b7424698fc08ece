"""Waiting for a connection to Redis: a command starts without one, and should not fail because of that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from ..exceptions import EngineUnavailable

T = TypeVar("T")

#: Maximum seconds to wait, and seconds between two attempts.
WAIT_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.05

_clock, _sleep = time.monotonic, time.sleep


def once_connected(ask: Callable[[], T], is_answered: Callable[[T], bool]) -> T:
    """Return the result of `ask`, which is called again for a while if Redis has not answered.

    The first call starts a connection, and gives up after DEADLINE_MS. is_answered: whether Redis has answered. What
    `ask` raises after that while is raised: EngineUnavailable.
    """
    until = _clock() + WAIT_SECONDS
    while True:
        try:
            if is_answered(found := ask()) or _clock() >= until:
                return found
        except EngineUnavailable:
            if _clock() >= until:
                raise
        _sleep(PAUSE_SECONDS)
