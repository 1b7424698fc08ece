"""Calendar windows: days, weeks, months and years in a time zone."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

#: The calendars, each with the length of its longest window in days.
CALENDARS: Final = {"day": 1, "week": 7, "month": 31, "year": 366}

#: Files in the zone database that are not zones: two depend on the machine, and the last is a placeholder.
_NO_ZONES: Final = {"localtime", "posixrules", "Factory"}
#: Folders that contain all zones again, with and without leap seconds.
_COPIES: Final = ("posix/", "right/")


class Window(NamedTuple):
    """From `start` to `end`, exclusive, in microseconds since the Unix epoch."""

    start: int
    end: int


class Anchor(NamedTuple):
    """When the months of a caller begin; `None` = as a limit says. day: 1 to 31. starts_at: the time of day."""

    day: int | None = None
    timezone: str | None = None
    starts_at: time | None = None


def window_at(
    at_us: int, calendar: str, timezone: str | None, anchor_day: int | None, anchor_time: time | None = None
) -> Window:
    """Return the window that contains this time. Each `None`: UTC, the first day, midnight."""
    zone = zone_of(timezone)
    day = datetime.fromtimestamp(at_us // 1_000_000, zone).date()
    window = _window_of(day, calendar, zone, anchor_day or 1, anchor_time or time.min)
    # A zone that turned its clocks back over midnight has had the same date twice; windows must not overlap.
    apart = (at_us >= window.end) - (at_us < window.start)
    return _window_of(day + timedelta(days=apart), calendar, zone, anchor_day or 1, anchor_time or time.min)


@lru_cache(maxsize=1_000)
def zone_of(timezone: str | None) -> tzinfo:
    """Return the time zone of this name. Raises ValueError if this machine does not have it."""
    if timezone is None or timezone == "UTC":
        return UTC  # needs no time zone database
    # Opens one file. `available_timezones()` opens all of them, which takes 15 ms or more.
    with suppress(KeyError, ValueError, OSError):
        if timezone not in _NO_ZONES and not timezone.startswith(_COPIES):
            return ZoneInfo(timezone)
    raise ValueError(f"timezone: {timezone!r} is unknown here; give a name such as 'Europe/Berlin'.")


@lru_cache(maxsize=10_000)
def _window_of(day: date, calendar: str, zone: tzinfo, anchor_day: int, anchor_time: time) -> Window:
    """Return the window that contains this date from `anchor_time` on."""
    if calendar == "day":
        first, last = day, day + timedelta(days=1)
    elif calendar == "week":
        first = day - timedelta(days=day.weekday())
        last = first + timedelta(days=7)
    elif calendar == "year":
        first, last = date(day.year, 1, 1), date(day.year + 1, 1, 1)
    else:
        first = _anchor(day.year, day.month, anchor_day)
        if day < first:
            first, last = _anchor(day.year, day.month - 1, anchor_day), first
        else:
            last = _anchor(day.year, day.month + 1, anchor_day)
    return Window(*[int(datetime.combine(day, anchor_time, zone).timestamp()) * 1_000_000 for day in (first, last)])


def _anchor(year: int, month: int, anchor_day: int) -> date:
    """Return the first day of a month's window: the anchor day, or the last day of a shorter month.

    month: 0 is December of the year before, 13 January of the year after.
    """
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    after = date(year + month // 12, month % 12 + 1, 1)
    return min(date(year, month, 1) + timedelta(days=anchor_day - 1), after - timedelta(days=1))
