"""Calendar windows, found by looking at what the clocks of a zone show, quarter of an hour by quarter of an hour."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from django_ratelimiter.engine import Limit

QUARTER = 15 * 60
DAY = timedelta(days=1)


def calendar_window(limit: Limit, at_us: int) -> tuple[int, int]:
    """Where the window that holds this moment starts and ends, in microseconds since the Unix epoch."""
    zone = limit.timezone or "UTC"
    seconds = at_us // 1_000_000
    day = _shown(zone, seconds).date() + 2 * DAY
    end = None
    while True:
        if _begins_window(limit, day):
            start = _start(zone, datetime.combine(day, limit.anchor_time or time()))
            if start <= seconds:
                break
            end = start
        day -= DAY
    if end is None:
        day = _shown(zone, seconds).date() + 3 * DAY
        while not _begins_window(limit, day):
            day += DAY
        end = _start(zone, datetime.combine(day, limit.anchor_time or time()))
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


def _shown(zone: str, seconds: int) -> datetime:
    """What the clocks of a zone show."""
    return datetime.fromtimestamp(seconds, ZoneInfo(zone)).replace(tzinfo=None)


@lru_cache(maxsize=10_000)
def _start(zone: str, wanted: datetime) -> int:
    """The first second at which the clocks of a zone show this.

    Where they skip it: as long after the last second before the change as if they did not.
    """
    moment = int(wanted.replace(tzinfo=UTC).timestamp()) - 30 * 3_600
    while _shown(zone, moment) < wanted:
        moment += QUARTER
    before = moment - QUARTER
    while moment - before > 1:
        middle = (before + moment) // 2
        before, moment = (before, middle) if _shown(zone, middle) >= wanted else (middle, moment)
    if _shown(zone, moment) == wanted:  # also where the clocks skip the time just before
        return moment
    return before + int((wanted - _shown(zone, before)).total_seconds())
