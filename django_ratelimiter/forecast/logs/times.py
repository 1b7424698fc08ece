"""Times in access logs, as integer microseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_US: Final = 32_503_680_000 * 1_000_000  # the year 3000
_MONTHS: Final = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1)  # noqa: SIM905
}

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
    if len(text) >= 20 and text[2] == "/" and text[6] == "/":  # 22/Nov/2026:18:00:00 +0000
        second = _SECONDS.get(text[18:20])
        if second is None or text[17] != ":":
            return _common(text, zone)
        minute = f"{text[:18]}00{text[20:]}"
        begin = minutes.get(minute)
        if begin is None:
            if len(minutes) >= _MAX_KNOWN:
                minutes.clear()
            begin = minutes[minute] = _common(minute, zone)
        return begin + second
    if text[:1].isdigit() and "-" not in text:
        return _number(text)
    moment = datetime.fromisoformat(text.replace(",", "."))
    return _to_us(moment if moment.tzinfo else moment.replace(tzinfo=zone))


def _common(text: str, zone: tzinfo) -> int:
    day, clock = (int(text[7:11]), _MONTHS.get(text[3:6], 0), int(text[:2])), text[12:20].split(":")
    moment = datetime(*day, *map(int, clock), tzinfo=UTC)  # type: ignore[arg-type,misc]
    offset = text[21:26]
    if not offset:
        return _to_us(moment.replace(tzinfo=zone))
    minutes = int(offset[1:3]) * 60 + int(offset[3:5])
    return _to_us(moment) - (-minutes if offset[0] == "-" else minutes) * 60_000_000


def _number(text: str) -> int:
    """Read seconds with a fraction, or whole milli-, micro- or nanoseconds, exactly."""
    whole, _, fraction = text.partition(".")
    number = int(whole)
    if fraction or number < _NOT_SECONDS:
        return number * 1_000_000 + int(f"{fraction[:6]:0<6}")
    if number < _NOT_SECONDS * 1_000:
        return number * 1_000
    return number if number < _NOT_SECONDS * 1_000_000 else number // 1_000


def _to_us(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
