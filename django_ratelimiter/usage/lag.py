"""How far collecting is behind: what has been counted, and is not in the buckets yet."""

from __future__ import annotations

import time
from typing import NamedTuple

from ..connection import get_engine
from ..engine.usage import minute_of


class Waiting(NamedTuple):
    """What waits to be collected.

    seconds: since the oldest minute that waits has ended; 0 = nothing waits. Where all is well that is no more than
    the time between two collections. batches: how many wait.
    """

    seconds: float
    batches: int


def waiting() -> Waiting:
    """Ask the engine what waits, and leave it there; minutes that have ended are closed. Raises EngineUnavailable."""
    batches = get_engine().take_usage()
    if not batches:
        return Waiting(0.0, 0)
    ended = (min(map(minute_of, batches)) + 1) * 60
    return Waiting(max(time.time() - ended, 0.0), len(batches))
