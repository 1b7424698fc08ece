"""Approximate mode: of which rules a process may fetch units in advance, or count by itself."""

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
    """Raise ValueError, with the limit's field, for a limit whose units cannot be fetched in advance."""
    if sync_interval is None:
        return
    if not limit.traits.fetches:
        names = ", ".join(algorithm for algorithm in Algorithm if algorithm.traits.fetches)
        why = "its units are requests in progress" if limit.holds_leases else "each request has a delay of its own"
        raise ValueError(
            f"algorithm: the units of {limit.algorithm} cannot be fetched in advance, as {why}; clear "
            f"sync_interval_ms, or choose one of {names}."
        )
    if sync_interval * 1_000_000 > limit.window_us:
        raise ValueError(
            "window: must not be shorter than sync_interval_ms, for which processes keep the units that they fetch."
        )
