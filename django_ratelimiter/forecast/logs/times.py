"""Times in access logs, as integer microseconds since the Unix epoch."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_US: Final = 32_503_680_000 * 1_000_000  # the year 3000
_MONTHS: Final = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1)  # noqa: SIM905
}

_NO_TIME: Final = "has no time in {!r:.60}"
_COMMON: Final = re.compile(
    r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):00(?:\.(\d{1,6}))?(?: ?([+-])(\d\d):?(\d\d))?", re.ASCII
)
_NUMBER: Final = re.compile(r"(\d{1,20})(?:\.(\d*))?", re.ASCII)

#: Maximum number of cached times, and of cached minutes of common logs: many successive lines have the same one.
_MAX_KNOWN: Final = 10_000

#: The seconds of a minute, as text.
_SECONDS: Final = {f"{second:02}": second * 1_000_000 for second in range(60)}

#: Numbers from here on are not seconds but milliseconds, microseconds or nanoseconds. As seconds they would be
#: later than the year 5138.
_NOT_SECONDS: Final = 10**11


def time_reader(zone: tzinfo) -> Callable[[str], int]:
    """Return a function that reads a time. zone: of times without one. It raises ValueError for an invalid time."""
    known: dict[str, int] = {}
    minutes: dict[str, int] = {}

    def read(text: str) -> int:
        found = known.get(text)
        if found is None:
            if len(known) >= _MAX_KNOWN:
                known.clear()
            found = _read(text, zone, minutes)
            if not 0 <= found < _END_US:
                raise ValueError("has a time that is not between 1970 and 2999")
            known[text] = found
        return found

    return read


def _read(text: str, zone: tzinfo, minutes: dict[str, int]) -> int:
    text = text.strip("[]")
    if text[2:3] == "/":
        second = _SECONDS.get(text[18:20])
        if second is None or text[17:18] != ":":
            raise ValueError(_NO_TIME.format(text))
        minute = f"{text[:18]}00{text[20:]}"
        begin = minutes.get(minute)
        if begin is None:
            if len(minutes) >= _MAX_KNOWN:
                minutes.clear()
            begin = minutes[minute] = _common(minute, zone)
        return begin + second
    if found := _NUMBER.fullmatch(text):
        return _number(int(found[1]), found[2] or "")
    try:
        moment = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        raise ValueError(_NO_TIME.format(text)) from None
    return _to_us(moment if moment.tzinfo else moment.replace(tzinfo=zone))


def _common(text: str, zone: tzinfo) -> int:
    """Read a time of common logs, such as 22/Nov/2026:18:00:00 +0000; the zone is optional, as is a fraction."""
    found = _COMMON.fullmatch(text)
    if found is None or found[2] not in _MONTHS:
        raise ValueError(_NO_TIME.format(text))
    day, month, year, hour, minute, fraction, sign, hours, minutes = found.groups()
    micros = int(f"{fraction or '':0<6}")
    try:
        moment = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), 0, micros, tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{_NO_TIME.format(text)}: {error}") from None
    if not sign:
        return _to_us(moment.replace(tzinfo=zone))
    offset = (int(hours) * 60 + int(minutes)) * 60_000_000
    return _to_us(moment) - (-offset if sign == "-" else offset)


def _number(whole: int, fraction: str) -> int:
    """Return seconds with a fraction, or whole milli-, micro- or nanoseconds, exactly."""
    if fraction or whole < _NOT_SECONDS:
        return whole * 1_000_000 + int(f"{fraction[:6]:0<6}")
    if whole < _NOT_SECONDS * 1_000:
        return whole * 1_000
    return whole if whole < _NOT_SECONDS * 1_000_000 else whole // 1_000


def _to_us(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
