"""The lag of the collector: batches that are not in the buckets yet. Apart from models, for Prometheus."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ...backend import get_engine
from ...engine.usage import minute_of
from ...exceptions import EngineUnavailable


class Lag(NamedTuple):
    """Batches that wait to be collected.

    seconds: since the end of the oldest waiting minute; 0 = nothing waits. Normally not more than the time between
    two collections. batches: their number.
    """

    seconds: float
    batches: int


def lag() -> Lag:
    """Return the lag. Closes past minutes, but collects nothing. Raises EngineUnavailable."""
    batches = get_engine().take_usage()
    if not batches:
        return Lag(0.0, 0)
    ended = (min(map(minute_of, batches)) + 1) * 60
    return Lag(max(engine_time() - ended, 0.0), len(batches))


def engine_time() -> float:
    """Return the engine's time in seconds since the Unix epoch; this process's if the engine is unavailable."""
    seen: Any = getattr(get_engine(), "partitions", None)
    try:
        return time.time() if seen is None else seen.now_us() / 1_000_000
    except EngineUnavailable:
        return time.time()
