"""Calendar windows, found by looking at what the clocks of a zone show, quarter of an hour by quarter of an hour."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from django_ratelimiter.engine import Limit

QUARTER = 15 * 60
DAY = timedelta(days=1)


def calendar_window(limit: Limit, at_us: int) -> tuple[int, int]:
    """Where the window that holds this moment starts and ends, in microseconds since the Unix epoch."""
    zone = limit.timezone or "UTC"
    seconds = at_us // 1_000_000
    day = _shown(zone, seconds) + 2 * DAY
    end = None
    while True:
        if _begins_window(limit, day):
            start = _first_shown(zone, day)
            if start <= seconds:
                break
            end = start
        day -= DAY
    if end is None:
        day = _shown(zone, seconds) + 3 * DAY
        while not _begins_window(limit, day):
            day += DAY
        end = _first_shown(zone, day)
    return start * 1_000_000, end * 1_000_000


def _begins_window(limit: Limit, day: date) -> bool:
    if limit.calendar == "day":
        return True
    if limit.calendar == "week":
        return day.isoweekday() == 1
    if limit.calendar == "year":
        return (day.month, day.day) == (1, 1)
    anchor = limit.anchor_day or 1
    last_of_month = (day + DAY).month != day.month
    return day.day == anchor or (last_of_month and day.day < anchor)


def _shown(zone: str, seconds: int) -> date:
    """The date on the calendars of a zone."""
    return datetime.fromtimestamp(seconds, ZoneInfo(zone)).date()


@lru_cache(maxsize=10_000)
def _first_shown(zone: str, day: date) -> int:
    """The first second at which the calendars of a zone show this date or, where they skip it, a later one."""
    moment = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) - 30 * 3_600
    while _shown(zone, moment) < day:
        moment += QUARTER
    before = moment - QUARTER
    while moment - before > 1:
        middle = (before + moment) // 2
        before, moment = (before, middle) if _shown(zone, middle) >= day else (middle, moment)
    return moment
