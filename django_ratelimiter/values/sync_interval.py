"""Approximate mode: which rules a process may count itself between two syncs with Redis."""

from __future__ import annotations

from typing import Final

from ..engine.limits import Algorithm, Limit

#: Means "never": each process counts alone.
LOCAL_MS: Final = -1
#: The longest interval, in milliseconds.
MAX_MS: Final = 3_600_000


def to_seconds(sync_interval_ms: object) -> float | None:
    """Return the interval in seconds; negative = purely local, `None` = exact. Raises ValueError if it is invalid."""
    if sync_interval_ms is None or sync_interval_ms == 0:
        return None
    if type(sync_interval_ms) is not int or not LOCAL_MS <= sync_interval_ms <= MAX_MS:
        raise ValueError(
            f"sync_interval_ms: must be a whole number of milliseconds up to {MAX_MS}, 0 or -1, "
            f"not {sync_interval_ms!r}."
        )
    return -1.0 if sync_interval_ms == LOCAL_MS else sync_interval_ms / 1_000


def check_sync_interval(limit: Limit, sync_interval: float | None) -> None:
    """Raise ValueError, with the limit's field, for a limit that a process cannot count itself."""
    if sync_interval is None:
        return
    if not limit.traits.counts_locally:
        names = ", ".join(algorithm for algorithm in Algorithm if algorithm.traits.counts_locally)
        raise ValueError(f"algorithm: {limit.algorithm} cannot be counted in each process; choose one of {names}.")
    if sync_interval * 1_000_000 > limit.window_us:
        raise ValueError(
            "window: must not be shorter than sync_interval_ms, the interval at which processes send their counts."
        )
