"""A limit: so much quota per window, kept by an algorithm. Values that cannot be enforced exactly raise an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import time
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from math import gcd
from operator import index
from struct import pack
from typing import Any, Final, NamedTuple
from zlib import crc32

from .calendars import CALENDARS, Anchor, window_at, zone_of
from .registry import ANCHORS, DEFAULT, ON_CALENDAR, REFILLS, Traits
from .registry import Algorithm as Algorithm

MAX_WINDOW_SECONDS: Final = 366 * 86_400

#: More units than anyone needs, and a counter of them fits in six bytes.
MAX_UNITS: Final = 2**48 - 1

#: An algorithm that stores each request must not fill the server's memory.
MAX_ENTRIES: Final = 10_000
MAX_SLOTS: Final = 100

#: Lua numbers are doubles: integers are exact below this value, so every product must stay below it.
EXACT: Final = 2**53

#: Possible units of time, in microseconds, from the finest to the coarsest.
TICKS_US: Final = (1, 1_000, 1_000_000)

SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}

#: The milliseconds for which a process keeps units that it fetches in advance: at most, and to count by itself.
MAX_SYNC_MS: Final = 3_600_000
LOCAL_MS: Final = -1

#: The longest time to fill a bucket, in microseconds: added to the current time it is still exact.
MAX_REFILL_US: Final = 100 * MAX_WINDOW_SECONDS * 1_000_000

#: The latest supported time, in the year 2155: sums with times before it are exact.
END_US: Final = EXACT - MAX_REFILL_US


class Terms(NamedTuple):
    """A limit as integers for the algorithms; every product of them stays below 2^53.

    For windows, `period` is the window in ticks and `capacity` the quota; `rate` is the number of slots, or how a
    fixed window is anchored, or 0. For buckets, one token is `period` parts, `rate` parts come back per tick, and
    `capacity` is in whole tokens. `extra` depends on the charge: the start of a calendar window, or the
    longest delay of a leaky bucket, both in microseconds.
    """

    period: int
    rate: int
    capacity: int
    tick_us: int
    #: If fewer units remain, the soft quota is exceeded; 0 = there is none.
    soft_floor: int
    extra: int = 0


_RATE = re.compile(
    r"(?P<quota>[0-9]+)\s*(?:/|\s+per\s+)\s*(?:(?P<count>[0-9]+(?:\.[0-9]+)?)\s*)?(?P<unit>[a-z]+)", re.ASCII
)


@dataclass(frozen=True)
class Limit:
    """`quota` units per `window`, counted by `algorithm`.

    window: seconds, an int, a float or a Decimal, in whole microseconds, at most 366 days; `None` with a calendar.
    burst: the capacity of a bucket, in units; `None` = the quota. Only for buckets.
    soft_quota: units after which an allowed request has `soft_exceeded`, below quota and burst; `None` = none.
    slots: the number of slots of sliding_window_slots; `None` = 10 there.
    anchor: fixed windows begin by the clock, or each with a key's first request.
    refill: a token bucket fills up continuously, or by the whole quota at whole windows of the clock.
    calendar: day, week (from Monday), month or year instead of a window; only for fixed_window.
    timezone: the time zone of the calendar; `None` = UTC. anchor_day: the day on which months begin; in shorter
    months, the last day. `None` = 1. anchor_time: the time of that day; `None` = midnight. If the clocks skip it, that
    many minutes after the change; if they repeat it, the first time.

    Raises ValueError, which names the field, for every value that cannot be enforced exactly.
    """

    quota: int
    window: float | Decimal | None = None
    algorithm: str = DEFAULT
    burst: int | None = None
    soft_quota: int | None = None
    slots: int | None = None
    anchor: str = ANCHORS[0]
    refill: str = REFILLS[0]
    calendar: str | None = None
    timezone: str | None = None
    anchor_day: int | None = None
    anchor_time: time | None = None

    def __post_init__(self) -> None:
        algorithm = known_algorithm(self.algorithm)
        object.__setattr__(self, "algorithm", algorithm)
        check_options(self, algorithm)
        for name in ("quota", "burst", "soft_quota"):
            check_units(name, getattr(self, name), optional=name != "quota")
        if algorithm.traits.keeps_entries and self.quota > MAX_ENTRIES:
            raise ValueError(
                f"quota: {algorithm} stores every request, so the quota is at most {MAX_ENTRIES}; choose another "
                "algorithm."
            )
        if self.calendar is not None:
            check_calendar(self)
            object.__setattr__(self, "window", None)
        if self.capacity * self.window_us > self.quota * MAX_REFILL_US:
            raise ValueError(f"burst: {self.capacity} units would take more than 100 years to refill; lower the burst.")
        ceiling = min(self.quota, self.capacity)
        if self.soft_quota is not None and self.soft_quota >= ceiling:
            raise ValueError(f"soft_quota: must be below {ceiling}, the quota or the smaller burst.")
        self.terms  # noqa: B018  computed now, so that a limit which cannot be exact raises an error here

    def __hash__(self) -> int:
        """Return a hash of few fields: templates of calls are found by it."""
        return hash((self.quota, self.window_us))

    @classmethod
    def parse(cls, rate: str, **options: Any) -> Limit:
        """Return the limit of a rate such as "100/minute" or "10 per 30 seconds". options: other fields.

        Raises ValueError for an invalid rate.
        """
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
        """The largest cost that can ever be allowed."""
        return self.quota if self.burst is None else self.burst

    @cached_property
    def window_us(self) -> int:
        """The window in microseconds; for a calendar its longest window, without changes of the clock."""
        if self.calendar is not None:
            return CALENDARS[self.calendar] * 86_400_000_000
        return microseconds(self.window)

    @cached_property
    def terms(self) -> Terms:
        """The integers of this limit. The unit of time is the finest that keeps every product exact."""
        window_us = self.window_us
        soft_floor = 0 if self.soft_quota is None else self.capacity - self.soft_quota
        if not self.traits.multiplies:  # nothing can overflow
            return Terms(window_us, self._rate_of_window(), self.capacity, 1, soft_floor)
        if self.refill == "interval":  # a bucket with one tick per window
            return Terms(1, self.quota, self.capacity, window_us, soft_floor)
        for tick_us in TICKS_US:
            period, rest = divmod(window_us, tick_us)
            if rest:
                break
            rate = 0
            if self.is_bucket:
                shared = gcd(self.quota, period)
                rate, period = self.quota // shared, period // shared
            if max(self.capacity, rate, 1) * period < EXACT // 2:
                return Terms(period, rate, self.capacity, tick_us, soft_floor, EXACT if self.holds else 0)
        raise ValueError(
            f"quota: {self.capacity} units over a window of {self.window} s cannot be computed exactly; "
            "lower the quota, shorten the window, or make the window a whole number of seconds."
        )

    def _rate_of_window(self) -> int:
        """Return the `rate` of the terms if nothing is multiplied: the number of slots, or how windows are anchored."""
        if "slots" not in self.traits.options:
            return ON_CALENDAR if self.calendar else ANCHORS.index(self.anchor)
        if self.number_of_slots > self.window_us:
            raise ValueError(
                f"slots: a window of {self.window_us} microseconds cannot have more slots than microseconds."
            )
        return self.number_of_slots

    @cached_property
    def traits(self) -> Traits:
        """The traits of the algorithm."""
        return Algorithm(self.algorithm).traits

    @cached_property
    def is_bucket(self) -> bool:
        """True if it refills. Then its capacity can differ from the quota."""
        return "burst" in self.traits.options

    @cached_property
    def holds(self) -> bool:
        """True if an allowed request may be delayed."""
        return "max_delay" in self.traits.options

    @cached_property
    def holds_leases(self) -> bool:
        """True if an allowed request counts until its lease is released."""
        return self.traits.holds_leases

    @cached_property
    def is_fixed(self) -> bool:
        """True if its terms are the same in each call."""
        return self.calendar is None and not self.holds

    def terms_at(self, at_us: int, max_delay: float | None = None) -> Terms:
        """Return the terms of a charge at this time. max_delay: seconds; `None` = any."""
        if self.calendar is not None:
            latest: Terms | None = self.__dict__.get("_latest")  # the calendar takes longer than the rest
            if latest is None or not latest.extra <= at_us < latest.extra + latest.period:
                start, end = window_at(at_us, self.calendar, self.timezone, self.anchor_day, self.anchor_time)
                latest = self.__dict__["_latest"] = self.terms._replace(period=end - start, extra=start)
            return latest
        if max_delay is not None and self.holds:
            return self.terms._replace(extra=_delay_us(max_delay))
        return self.terms

    @cached_property
    def is_by_the_clock(self) -> bool:
        """True if its windows begin and end at times of the clock or of a calendar."""
        return self.calendar is not None or (self.traits.resets_at_end and self.anchor == ANCHORS[0])

    @cached_property
    def packed(self) -> bytes:
        """The terms for check.lua: seven doubles, the algorithm's number first."""
        return self.packed_with(self.terms)

    def packed_with(self, terms: Terms) -> bytes:
        """Return the terms of one charge, packed as in `packed`."""
        return _packed(self.algorithm, terms)

    @property
    def number_of_slots(self) -> int:
        """The slots of a window; algorithms without the option have one, the whole window."""
        if "slots" not in self.traits.options:
            return 1
        return 10 if self.slots is None else self.slots

    @cached_property
    def tag(self) -> str:
        """The part of the key that differs for each kind of limit: if it changes, counters start at zero.

        It is short because it is a part of every key. It contains a checksum of the time zone.
        """
        letter = Algorithm(self.algorithm).letter
        if self.calendar is not None:
            anchor = "" if self.anchor_day in (None, 1) else f"{self.anchor_day}"
            zone = "" if self.timezone in (None, "UTC") else f"@{crc32(str(self.timezone).encode()) % 16**7:07x}"
            start = "" if self.anchor_time in (None, time.min) else f"t{self.anchor_time:%H%M%S}"
            return f":{letter}{self.calendar[0]}{anchor}{zone}{start}"
        seconds, rest = divmod(self.window_us, 1_000_000)
        window = f"{self.window_us}us" if rest else f"{seconds}"
        slots = f"/{self.number_of_slots}" if self.number_of_slots > 1 else ""
        variant = {"first_request": "r", "interval": "i"}
        return f":{letter}{variant.get(self.anchor, '')}{variant.get(self.refill, '')}{window}{slots}"

    def anchored(self, own: Anchor) -> Limit:
        """Return this limit with months that begin when those of a caller do. Other limits do not change."""
        if self.calendar != "month":
            return self
        day, zone, start = own
        return replace(
            self,
            anchor_day=self.anchor_day if day is None else day,
            timezone=zone or self.timezone,
            anchor_time=self.anchor_time if start is None else start,
        )

    def is_counted_in(self, name: str) -> bool:
        """Return whether this is the name of one of its counters, whenever a caller's months begin."""
        tag = name[name.rindex(":") :]
        return tag == self.tag or (self.calendar == "month" and tag.startswith(self.tag[:3]))

    def times(self, factor: float | Decimal, least: int = 1) -> Limit:
        """Return this limit with `factor` times its units, rounded down. Its counters stay.

        least: of its capacity. The quota is at most the maximum of its algorithm. A soft quota that would not be below
        the quota is dropped. If the numbers would not be exact, the limit does not change.
        """
        exact, most = Fraction(str(factor)), MAX_ENTRIES if self.traits.keeps_entries else MAX_UNITS
        given = (self.quota, self.burst or 0, self.soft_quota or 0)
        quota, burst, soft = [min(max(1, int(units * exact)), most) for units in given]
        quota, burst = (max(quota, least), 0) if self.burst is None else (quota, max(burst, least))
        if self.soft_quota is None or soft >= min(quota, burst or quota):
            soft = 0
        with suppress(ValueError):
            return replace(self, quota=quota, burst=burst or None, soft_quota=soft or None)
        return self

    def scaled(self, share: float, least: int = 1) -> Limit:
        """Return this limit with `share` of its units, see `times`, and no soft quota."""
        return replace(self.times(share, least), soft_quota=None)


def known_algorithm(value: str) -> Algorithm:
    """Return the algorithm of this name."""
    try:
        return Algorithm(value)
    except ValueError:
        raise ValueError(f"algorithm: {value!r} is unknown; choose one of {', '.join(Algorithm)}.") from None


def whole_units(cost: Any) -> int:
    """Return a cost of 0 or more units as `int`. Raises TypeError or ValueError for anything else."""
    if isinstance(cost, bool) or not hasattr(type(cost), "__index__"):  # also numbers of other libraries
        raise TypeError(f"cost: must be a whole number, not {cost!r}.")
    if cost < 0:
        raise ValueError(f"cost: must be 0 or more, not {cost!r}.")
    return index(cost)


def check_units(name: str, value: object, *, optional: bool) -> None:
    """Raise unless this is a number of units; optional: `None` is allowed."""
    if value is None and optional:
        return
    if type(value) is not int or not 1 <= value <= MAX_UNITS:
        if type(value) is int and value < 1:
            raise ValueError(f"{name}: must be at least 1, not {value}.")
        raise ValueError(f"{name}: must be a whole number from 1 to 2^48 - 1, not {value!r}.")


_WORDS: Final = {"anchor": ANCHORS, "refill": REFILLS, "calendar": tuple(CALENDARS)}


def check_options(limit: Limit, algorithm: Algorithm) -> None:
    """Raise for options that only other algorithms use, and for unknown words."""
    for option in fields(limit):
        name, value = option.name, getattr(limit, option.name)
        if value == option.default:
            continue
        users = [str(user) for user in Algorithm if name in user.options]
        if users and algorithm not in users:
            raise ValueError(f"{name}: {algorithm} has no {name}; leave it out, or choose {' or '.join(users)}.")
        if name in _WORDS and value not in _WORDS[name]:
            raise ValueError(f"{name}: {value!r} is unknown; choose one of {', '.join(_WORDS[name])}.")
    slots = limit.slots
    if slots is not None and (type(slots) is not int or not 1 <= slots <= MAX_SLOTS):
        raise ValueError(f"slots: must be a whole number from 1 to {MAX_SLOTS}, not {slots!r}.")
    if limit.calendar is None:
        for name in ("timezone", "anchor_day", "anchor_time"):
            if getattr(limit, name) is not None:
                raise ValueError(f"{name}: only a calendar has one; leave it out, or choose a calendar.")


def check_calendar(limit: Limit) -> None:
    """Raise for values that contradict the calendar. A window is allowed if it is as long as the calendar's."""
    calendar, day, start = limit.calendar or "", limit.anchor_day, limit.anchor_time
    if limit.timezone is not None:
        zone_of(str(limit.timezone))
    if limit.anchor != ANCHORS[0]:
        raise ValueError("anchor: a calendar's windows begin by the calendar; leave it out.")
    if day is not None and (calendar != "month" or type(day) is not int or not 1 <= day <= 31):
        raise ValueError(f"anchor_day: must be a day from 1 to 31 on which months begin, not {day!r} of a {calendar}.")
    if start is not None and (calendar != "month" or not isinstance(start, time) or start.tzinfo or start.microsecond):
        raise ValueError(f"anchor_time: must be the time of day at which months begin, in seconds, not {start!r}.")
    if limit.window is not None:
        days = Fraction(microseconds(limit.window), 86_400_000_000)
        if days not in {"day": (1,), "week": (7,), "month": (28, 29, 30, 31), "year": (365, 366)}[calendar]:
            raise ValueError(f"window: a calendar {calendar} is no window of {limit.window} seconds; leave it out.")


def microseconds(window: object) -> int:
    """Return the microseconds of a window in seconds."""
    if isinstance(window, bool) or not isinstance(window, int | float | Decimal):
        raise ValueError(f"window: must be a number of seconds, not {window!r}.")
    try:
        seconds = window if isinstance(window, int) else Fraction(str(window))
    except ValueError:  # NaN and infinity
        seconds = Fraction(0)
    if not 0 < seconds <= MAX_WINDOW_SECONDS:
        raise ValueError(f"window: must be above 0 and at most {MAX_WINDOW_SECONDS} seconds, not {window}.")
    found = seconds * 1_000_000
    if found.denominator != 1:
        raise ValueError(f"window: must be a whole number of microseconds, not {Decimal(str(window)):f} seconds.")
    return int(found)


#: The options of a limit in rows and snapshots, with their defaults; `anchor_time` is only a caller's own.
OPTIONS: Final[Mapping[str, Any]] = {
    each.name: each.default
    for each in fields(Limit)
    if each.name not in ("quota", "window", "algorithm", "anchor_time")
}


def options_from(value_of: Callable[[str], Any]) -> dict[str, Any]:
    """Return the options of a row by name; absent or empty = the default."""
    return {name: value for name in OPTIONS if (value := value_of(name)) not in (None, "")}


@lru_cache(maxsize=10_000)
def _packed(algorithm: str, terms: Terms) -> bytes:
    return pack("<ddddddd", Algorithm(algorithm).number, *terms)


def check_time(at_us: int) -> None:
    """Raise ValueError for a time before the Unix epoch, which Redis does not support, or after the latest time."""
    if not 0 <= at_us < END_US:
        raise ValueError(f"now_us: must be microseconds since 1970, from 0 to below {END_US}, not {at_us!r}.")


@lru_cache(maxsize=1_000)
def _delay_us(seconds: float) -> int:
    """Return microseconds, rounded down. Raises ValueError for a value that is not a delay."""
    if not isinstance(seconds, int | float | Decimal) or seconds != seconds or seconds < 0:
        raise ValueError(f"max_delay: must be a number of seconds from 0, not {seconds!r}.")
    return min(int(Fraction(str(+seconds)) * 1_000_000), EXACT) if seconds < EXACT else EXACT


def sync_seconds(sync_interval_ms: object) -> float | None:
    """Return `sync_interval_ms` in seconds; negative = purely local, `None` = exact. Raises ValueError for another."""
    if sync_interval_ms is None or sync_interval_ms == 0:
        return None
    if type(sync_interval_ms) is not int or not LOCAL_MS <= sync_interval_ms <= MAX_SYNC_MS:
        raise ValueError(
            f"sync_interval_ms: must be a whole number of milliseconds up to {MAX_SYNC_MS}, 0 or -1, "
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
