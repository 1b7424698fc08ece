"""Limits multiplied for a caller: "double until Friday"."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from ..engine.limits import MAX_ENTRIES, MAX_UNITS, Limit


@lru_cache(maxsize=4096)
def multiply_limit(limit: Limit, multiplier: Decimal, minimum: int = 1) -> Limit:
    """Return this limit with its quota, burst and soft quota times `multiplier`, rounded down. Its counters stay.

    minimum: of its capacity. The quota is at most the maximum of its algorithm; a limit that
    would not be exact does not change.
    """
    quota = min(_times(limit.quota, multiplier), MAX_ENTRIES if limit.traits.keeps_entries else MAX_UNITS)
    burst = None if limit.burst is None else min(max(_times(limit.burst, multiplier), minimum), MAX_UNITS)
    if burst is None:
        quota = max(quota, minimum)
    soft = None if limit.soft_quota is None else _times(limit.soft_quota, multiplier)
    if soft is not None and soft >= min(quota, burst or quota):
        soft = None
    try:
        return replace(limit, quota=quota, burst=burst, soft_quota=soft)
    except ValueError:
        return limit


def _times(units: int, multiplier: Decimal) -> int:
    return max(1, int(units * Fraction(multiplier)))
