"""Limits and times for hypothesis.

Each choice is made by a `Random`: one of hypothesis' own (`st.randoms()`) can be shrunk; a seeded one is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Limit
from tests.reference import calendar_window, capacity_of, period_of

YEAR = 366 * 86_400
MOST = 10_000_000
MAX_ENTRIES = 10_000

#: Zones whose days have 23, 23.5, 24.5 and 25 hours, that skip midnight or a day, or show an hour around it twice.
ZONES = (
    None,
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo"),
    *("Asia/Beirut", "America/St_Johns", "America/Havana", "Asia/Kathmandu"),
)

Windows = Sequence[Decimal | int]


def window_by(random: Random) -> Decimal | int:
    """Seconds: tenths from 0.1 s, or whole seconds up to a year."""
    match random.randrange(3):
        case 0:
            return random.choice((1, 10, 60, 3_600, 86_400, YEAR))
        case 1:
            return Decimal(random.randint(1, 10_000)) / 10
        case _:
            return random.randint(1, random.choice((100, 100_000, YEAR)))


def tiny_window_by(random: Random) -> float:
    """Seconds: 1 to 6 millionths."""
    return random.randint(1, 6) / 1_000_000


def quota_by(random: Random) -> int:
    match random.randrange(3):
        case 0:
            return random.choice((1, 2, 3, 7, 10, 11, 100, 1_000, MOST))
        case 1:
            return random.randint(1, 20)
        case _:
            return random.randint(1, random.choice((1_000, MOST)))


def limit_by(
    random: Random,
    algorithm: Algorithm | None = None,
    *,
    window: Decimal | float | None = None,
    quota: int | None = None,
    options: bool = True,
) -> Limit:
    """A limit of this algorithm, or of any. options: whether it may have others than burst and soft quota."""
    algorithm = algorithm or random.choice(list(Algorithm))
    given: dict[str, Any] = {"window": window_by(random) if window is None else window}
    if options:
        given |= _options_by(random, algorithm, given["window"], calendar=window is None)
    return _with_units(random, algorithm, given, quota or quota_by(random))


def _options_by(random: Random, algorithm: Algorithm, window: Decimal | float, *, calendar: bool) -> dict[str, Any]:
    if algorithm == "fixed_window":
        match random.randrange(3):
            case 0:
                return {"anchor": "first_request"}
            case 1 if calendar:
                return _calendar_by(random)
    if algorithm == "token_bucket" and random.randrange(3) == 0:
        return {"refill": "interval"}
    if algorithm == "sliding_window_slots":
        most = min(100, int(window * 1_000_000))
        slots = random.choice((None, random.randint(1, most), min(random.randint(1, 6), most)))
        return {"slots": most if slots is None and most < 10 else slots}
    return {}


def _calendar_by(random: Random) -> dict[str, Any]:
    calendar = random.choice(("day", "week", "month", "year"))
    day = random.choice((None, 1, 29, 30, 31, random.randint(1, 31))) if calendar == "month" else None
    start = random.choice((None, None, time(2, 30), time(random.randrange(24)))) if calendar == "month" else None
    given = {"window": None, "calendar": calendar, "timezone": random.choice(ZONES)}
    return given | {"anchor_day": day, "anchor_time": start}


def _with_units(random: Random, algorithm: Algorithm, given: dict[str, Any], quota: int) -> Limit:
    burst = soft = None
    if algorithm in ("sliding_window_log", "concurrency"):
        quota = min(quota, MAX_ENTRIES)
    if "burst" in algorithm.options:
        most = min(MOST, 90 * YEAR * quota // int(given["window"] + 1))
        burst = random.choice((None, random.randint(1, min(most, 2 * quota)), random.randint(1, most)))
    ceiling = min(quota, burst or quota)
    if ceiling > 1 and random.randrange(2):
        soft = random.randint(1, ceiling - 1)
    return Limit(quota, algorithm=algorithm, burst=burst, soft_quota=soft, **given)


def changed_by(random: Random, limit: Limit, quota: int | None = None) -> Limit:
    """A limit that an editor might turn this one into, keeping its counters."""
    kept = ("window", "anchor", "refill", "slots", "calendar", "timezone", "anchor_day", "anchor_time")
    given = {name: getattr(limit, name) for name in kept}
    return _with_units(random, Algorithm(limit.algorithm), given, quota or quota_by(random))


@st.composite
def limits(draw: st.DrawFn, algorithm: Algorithm | None = None, **given: Any) -> Limit:
    """Limits as `limit_by` makes them."""
    return limit_by(draw(st.randoms(use_true_random=False)), algorithm, **given)


def cost_by(random: Random, limit: Limit, left: int | None = None) -> int:
    """From nothing to more than the limit ever admits; often just what is left of it."""
    capacity = capacity_of(limit)
    if left is not None and random.randrange(3) == 0:
        return max(left + random.choice((0, 0, 1, -1)), 0)
    match random.randrange(3):
        case 0:
            return random.choice((0, 1, 1, 1, 2, capacity - 1, capacity, capacity + 1, 2**60))
        case 1:
            return random.randint(0, 5)
        case _:
            return random.randint(0, random.choice((capacity + 1, capacity // 3 + 1)))


def pause_by(random: Random, now: int, limit: Limit) -> int:
    """Microseconds until something of interest: a unit comes back, a window ends; or back to an earlier time."""
    period = period_of(limit)
    near = random.choice((0, 0, -1, 1, random.randint(-2_000, 2_000)))
    match random.randrange(6):
        case 0:
            return near
        case 1:
            return near + random.choice((period, period // 2, period // limit.quota, period // (limit.slots or 10)))
        case 2:
            end = calendar_window(limit, now)[1] if limit.calendar else now - now % period + period
            return near + end - now
        case 3:
            return near + random.randint(0, random.choice((3 * period, period // 3, 3 * period // limit.quota)))
        case 4:
            return near + random.randint(0, 3 * limit.quota) * period // limit.quota
        case _:
            return near - random.choice((0, random.randint(0, period), random.randint(0, period // 10), period))


@st.composite
def costs(draw: st.DrawFn, limit: Limit) -> int:
    """Costs as `cost_by` makes them."""
    return cost_by(draw(st.randoms(use_true_random=False)), limit)
