"""Commands wait for a connection to Redis: a new process has none, and a request would not wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

#: Seconds, and those between two attempts.
WAIT_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.05

_clock, _sleep = time.monotonic, time.sleep


def once_connected(ask: Callable[[], T], is_answered: Callable[[T], bool]) -> T:
    """Return what `ask` returns, which is called again for a while if Redis has not answered it.

    Its first call begins to connect, and gives up after DEADLINE_MS. is_answered: whether Redis has answered.
    """
    until = _clock() + WAIT_SECONDS
    while not is_answered(found := ask()) and _clock() < until:
        _sleep(PAUSE_SECONDS)
    return found
