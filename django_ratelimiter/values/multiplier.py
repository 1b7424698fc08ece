"""Limits multiplied for a caller: "double until Friday"."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from ..engine.limits import MOST_ENTRIES, MOST_UNITS, Limit


@lru_cache(maxsize=4096)
def multiply_limit(limit: Limit, multiplier: Decimal, minimum: int = 1) -> Limit:
    """This limit with its quota, burst and soft quota times `multiplier`, rounded down. It counts by the same counters.

    minimum: what its capacity never falls below. A quota stops at the most that its algorithm can keep; a limit that
    could not be reckoned exactly stays as it is.
    """
    quota = min(_times(limit.quota, multiplier), MOST_ENTRIES if limit.traits.keeps_entries else MOST_UNITS)
    burst = None if limit.burst is None else min(max(_times(limit.burst, multiplier), minimum), MOST_UNITS)
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
