"""Times as stored in the database, and the buckets of a time series."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from ..models.usage import UsageCounts

#: The width of a bucket.
Granularity = UsageCounts.Granularity


def aware(moment: datetime) -> datetime:
    """Return a time of this project in UTC. With USE_TZ off its times are naive, in the project's time zone."""
    return (moment if timezone.is_aware(moment) else timezone.make_aware(moment, _project())).astimezone(UTC)


def stored(moment: datetime) -> datetime:
    """Return an aware time as this project's models store it: naive if USE_TZ is off."""
    return moment if timezone.is_aware(timezone.now()) else timezone.make_naive(moment, _project())


def midnight(day: date, zone: tzinfo | None = None) -> datetime:
    """Return the time at which a day begins; `None` = in the current time zone."""
    return timezone.make_aware(datetime.combine(day, time.min), zone)


def end_from(text: str, zone: tzinfo | None = None) -> datetime:
    """Return the end in a text: a time, or a date, which includes that day. Raises ValueError and OverflowError."""
    if day := parse_date(text):
        return midnight(day + timedelta(days=1), zone)
    if moment := parse_datetime(text):
        return moment if timezone.is_aware(moment) else timezone.make_aware(moment, zone)
    raise ValueError(text)


def _project() -> tzinfo:
    return timezone.get_default_timezone()  # rows do not depend on a reader's time zone


def now() -> datetime:
    """Return the current time in UTC, whatever USE_TZ is."""
    return aware(timezone.now())


def start_of(minute: int) -> datetime:
    """Return the start of a minute since the Unix epoch."""
    return datetime.fromtimestamp(minute * 60, UTC)


def floor(moment: datetime, granularity: Granularity, zone: tzinfo) -> datetime:
    """Return the start, in UTC, of the minute, hour or day in this time zone that contains this time."""
    local = moment.astimezone(zone)
    if granularity is Granularity.DAY:
        return midnight(local.date(), zone).astimezone(UTC)
    if granularity is Granularity.MINUTE:
        return local.replace(second=0, microsecond=0).astimezone(UTC)
    hour = local.replace(minute=0, second=0, microsecond=0)  # keeps `fold`: an hour that comes twice is two hours
    start = hour.astimezone(UTC)
    if start <= moment and local.utcoffset() == start.astimezone(zone).utcoffset():
        return start
    # The clocks have changed in this hour; the latest possible start is right: if they change at 2:45, the new hour did
    # not begin at a full hour, or would begin after this time.
    passed = moment.astimezone(UTC) - timedelta(
        minutes=local.minute, seconds=local.second, microseconds=local.microsecond
    )
    begun = [each.astimezone(UTC) for each in (hour.replace(fold=0), hour.replace(fold=1))]
    if not passed.astimezone(zone).minute:
        begun.append(passed)
    return max(each for each in begun if each <= moment)


def starts_of(minute: int) -> dict[str, datetime]:
    """Return the starts of the buckets that contain this minute, by granularity, as stored.

    minute: since the Unix epoch. Hours and days are in the project's time zone: a day has 23 to 25 hours if clocks
    change, and an hour that comes twice is two hours.
    """
    return _starts(minute, timezone.get_default_timezone_name())


@lru_cache(maxsize=256)
def _starts(minute: int, _zone: str) -> dict[str, datetime]:
    return {str(each): stored(floor(start_of(minute), each, _project())) for each in Granularity}


def buckets(start: datetime, end: datetime, granularity: Granularity, zone: tzinfo) -> Iterator[datetime]:
    """Yield the starts, in UTC, of all buckets that overlap [start, end). A day has 23 to 25 hours."""
    width = {
        Granularity.MINUTE: timedelta(minutes=1),
        Granularity.HOUR: timedelta(hours=1),
        Granularity.DAY: timedelta(hours=36),
    }[granularity]
    at = floor(start, granularity, zone)
    while at < end:
        yield at
        next_start = floor(at + width, granularity, zone)
        if next_start == at:  # setting the clock back by half an hour makes an hour of 90 minutes
            next_start = floor(at + 2 * width, granularity, zone)
        at = next_start
