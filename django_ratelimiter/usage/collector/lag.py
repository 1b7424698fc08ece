"""How far collecting is behind: what has been counted, and is not in the buckets yet."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ...backend import get_engine
from ...engine.usage import minute_of
from ...exceptions import EngineUnavailable


class Lag(NamedTuple):
    """What waits to be collected.

    seconds: since the oldest minute that waits has ended; 0 = nothing waits. Where all is well that is no more than
    the time between two collections. batches: how many wait.
    """

    seconds: float
    batches: int


def lag() -> Lag:
    """Ask the engine what waits, and leave it there; minutes that have ended are closed. Raises EngineUnavailable."""
    batches = get_engine().take_usage()
    if not batches:
        return Lag(0.0, 0)
    ended = (min(map(minute_of, batches)) + 1) * 60
    return Lag(max(engine_time() - ended, 0.0), len(batches))


def engine_time() -> float:
    """The time by which minutes are counted, in seconds since the Unix epoch; ours where it cannot be asked."""
    seen: Any = getattr(get_engine(), "partitions", None)
    try:
        return time.time() if seen is None else seen.now_us() / 1_000_000
    except EngineUnavailable:
        return time.time()
