"""A limit: so much quota per window, kept by an algorithm. A value that cannot be enforced cannot be built."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from math import gcd
from struct import pack
from typing import Any, Final, NamedTuple

#: Lua keeps its numbers in doubles: integers are exact below this, so no product may reach it.
EXACT: Final = 2**53

#: Ticks that time may be counted in, in microseconds, from the finest to the coarsest.
TICKS_US: Final = (1, 1_000, 1_000_000)

SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
MAX_WINDOW_SECONDS: Final = 366 * 86_400

#: The longest that a bucket may take to fill up: added to today's time in microseconds it still is exact.
MAX_REFILL_US: Final = 100 * MAX_WINDOW_SECONDS * 1_000_000


class Algorithm(StrEnum):
    """The algorithms, each with the options it takes beside quota, window and soft_quota.

    This is the registry: the engines load `algorithms/VALUE.py` and `algorithms/VALUE.lua` by these values.
    """

    options: frozenset[str]
    number: int

    def __new__(cls, value: str, *options: str) -> Algorithm:
        member = str.__new__(cls, value)
        member._value_ = value
        member.options = frozenset(options)
        member.number = len(cls.__members__)
        return member

    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter"
    TOKEN_BUCKET = "token_bucket", "burst"


class Terms(NamedTuple):
    """A limit in the integers that the algorithms reckon with; every product of them stays below 2^53.

    For windows `period` is the window in ticks, `rate` is 0 and `capacity` the quota. For buckets one token
    is `period` parts, `rate` parts come back per tick, and `capacity` counts whole tokens.
    """

    period: int
    rate: int
    capacity: int
    tick_us: int
    #: Fewer units remaining than this means that the soft quota is exceeded; 0 = there is none.
    soft_floor: int


_RATE = re.compile(
    r"(?P<quota>[0-9]+)\s*(?:/|\s+per\s+)\s*(?:(?P<count>[0-9]+(?:\.[0-9]+)?)\s*)?(?P<unit>[a-z]+)", re.ASCII
)


@dataclass(frozen=True)
class Limit:
    """`quota` units per `window`, kept by `algorithm`.

    window: seconds, an int, a float or a Decimal, in whole microseconds, at most 366 days.
    burst: what a bucket holds when full, in units; `None` = the quota. Only for buckets.
    soft_quota: units after which an admitted request counts as `soft_exceeded`, below quota and burst; `None` = none.

    Raises ValueError, naming the field, for whatever could not be enforced exactly.
    """

    quota: int
    window: float | Decimal
    algorithm: str = Algorithm.SLIDING_WINDOW_COUNTER
    burst: int | None = None
    soft_quota: int | None = None

    def __post_init__(self) -> None:
        algorithm = _algorithm(self.algorithm)
        object.__setattr__(self, "algorithm", algorithm)
        for name in ("quota", "burst", "soft_quota"):
            _check_units(name, getattr(self, name), optional=name != "quota")
        if self.burst is not None and "burst" not in algorithm.options:
            raise ValueError(f"burst: {self.algorithm} has no burst; leave it out or choose a bucket.")
        if self.capacity * self.window_us > self.quota * MAX_REFILL_US:
            raise ValueError(f"burst: {self.capacity} units would take more than 100 years to come back; lower it.")
        ceiling = min(self.quota, self.capacity)
        if self.soft_quota is not None and self.soft_quota >= ceiling:
            raise ValueError(f"soft_quota: must be below {ceiling}, the quota or the smaller burst.")
        self.terms  # noqa: B018  computed now, so that a limit which cannot be exact is refused here

    @classmethod
    def parse(cls, rate: str, **options: Any) -> Limit:
        """Read "100/minute" or "10 per 30 seconds"; `options` are further fields. ValueError for all else."""
        match = _RATE.fullmatch(rate.strip().lower()) if isinstance(rate, str) else None
        unit = SECONDS.get(match["unit"].removesuffix("s")) if match else None
        if match is None or unit is None:
            raise ValueError(
                f"rate: {rate!r} is not a rate; write a whole number and a unit, as in '100/minute' or "
                f"'10 per 30 seconds' (units: {', '.join(SECONDS)})."
            )
        window = Decimal(match["count"] or 1) * unit
        return cls(int(match["quota"]), int(window) if window == int(window) else window, **options)

    @property
    def capacity(self) -> int:
        """The largest cost that can ever pass."""
        return self.quota if self.burst is None else self.burst

    @cached_property
    def window_us(self) -> int:
        """The window in microseconds."""
        return _window_us(self.window)

    @cached_property
    def terms(self) -> Terms:
        """The integers of this limit. Time is counted in the finest tick that keeps every product exact."""
        soft_floor = 0 if self.soft_quota is None else self.capacity - self.soft_quota
        for tick_us in TICKS_US:
            period, rest = divmod(self.window_us, tick_us)
            if rest:
                break
            if self.algorithm == Algorithm.FIXED_WINDOW:  # compares whole units only: nothing to overflow
                return Terms(period, 0, self.capacity, tick_us, soft_floor)
            rate = 0
            if "burst" in Algorithm(self.algorithm).options:
                shared = gcd(self.quota, period)
                rate, period = self.quota // shared, period // shared
            if max(self.capacity, rate, 1) * period < EXACT // 2:
                return Terms(period, rate, self.capacity, tick_us, soft_floor)
        raise ValueError(
            f"quota: {self.capacity} units over a window of {self.window} s cannot be reckoned exactly; "
            "lower the quota, shorten the window, or make the window a whole number of seconds."
        )

    @cached_property
    def packed(self) -> bytes:
        """The terms as check.lua reads them: six doubles, the algorithm's number first."""
        return pack("<dddddd", Algorithm(self.algorithm).number, *self.terms)

    @cached_property
    def tag(self) -> str:
        """What tells the counters of this limit from others under the same key: a change of it starts anew."""
        return f":{self.algorithm}:{self.window_us}"

    def scaled(self, share: float, least: int = 1) -> Limit:
        """This limit with `share` of its quota and burst, but a capacity of `least`, without its soft quota.

        In the rare case that the smaller numbers cannot be reckoned exactly, quota and burst stay whole.
        """
        exact = Fraction(str(share))
        quota, burst = max(1, int(self.quota * exact)), self.burst
        if burst is None:
            quota = max(quota, least)
        else:
            burst = max(1, least, int(burst * exact))
        with suppress(ValueError):
            return Limit(quota, self.window, self.algorithm, burst)
        return replace(self, soft_quota=None)


def _algorithm(value: str) -> Algorithm:
    try:
        return Algorithm(value)
    except ValueError:
        raise ValueError(f"algorithm: {value!r} is unknown; choose one of {', '.join(Algorithm)}.") from None


def _check_units(name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if type(value) is not int or not 1 <= value < EXACT:
        raise ValueError(f"{name}: must be a whole number from 1 to 2^53 - 1, not {value!r}.")


def _window_us(window: object) -> int:
    if isinstance(window, bool) or not isinstance(window, int | float | Decimal):
        raise ValueError(f"window: must be a number of seconds, not {window!r}.")
    try:
        seconds = Fraction(str(window))
    except ValueError:  # NaN and infinity
        seconds = Fraction(0)
    if not 0 < seconds <= MAX_WINDOW_SECONDS:
        raise ValueError(f"window: must be above 0 and at most {MAX_WINDOW_SECONDS} seconds, not {window}.")
    microseconds = seconds * 1_000_000
    if microseconds.denominator != 1:
        raise ValueError(f"window: must be a whole number of microseconds, not {window!r} seconds.")
    return int(microseconds)
