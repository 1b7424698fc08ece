"""Validation of the fields of a limit, alone and together. Every function raises ValueError with the field's name."""

from __future__ import annotations

from dataclasses import fields
from datetime import time
from decimal import Decimal
from fractions import Fraction
from operator import index
from typing import Any, Final

from .calendars import CALENDARS, zone_of
from .registry import ANCHORS, REFILLS, Algorithm

MAX_WINDOW_SECONDS: Final = 366 * 86_400

#: More units than anyone needs, and a counter of them fits in six bytes.
MAX_UNITS: Final = 2**48 - 1

#: An algorithm that stores each request must not fill the server's memory.
MAX_ENTRIES: Final = 10_000
MAX_SLOTS: Final = 100


def known_algorithm(value: str) -> Algorithm:
    """Return the algorithm of this name."""
    try:
        return Algorithm(value)
    except ValueError:
        raise ValueError(f"algorithm: {value!r} is unknown; choose one of {', '.join(Algorithm)}.") from None


def check_units(name: str, value: object, *, optional: bool) -> None:
    """Raise unless this is a number of units; optional: `None` is allowed."""
    if value is None and optional:
        return
    if type(value) is not int or not 1 <= value <= MAX_UNITS:
        if type(value) is int and value < 1:
            raise ValueError(f"{name}: must be at least 1, not {value}.")
        raise ValueError(f"{name}: must be a whole number from 1 to 2^48 - 1, not {value!r}.")


def whole_units(cost: Any) -> int:
    """Return a cost of 0 or more units as `int`. Raises TypeError or ValueError for anything else."""
    if isinstance(cost, bool) or not hasattr(type(cost), "__index__"):  # also numbers of other libraries
        raise TypeError(f"cost: must be a whole number, not {cost!r}.")
    if cost < 0:
        raise ValueError(f"cost: must be 0 or more, not {cost!r}.")
    return index(cost)


_WORDS: Final = {"anchor": ANCHORS, "refill": REFILLS, "calendar": tuple(CALENDARS)}


def check_options(limit: Any, algorithm: Algorithm) -> None:
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


def check_calendar(limit: Any) -> None:
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
