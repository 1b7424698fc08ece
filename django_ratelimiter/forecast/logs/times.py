"""Times in access logs, as integer microseconds since the Unix epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from ...engine.limits import END_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MONTHS: Final = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905

#: How far lines may be from their order: written by several processes, or at the end of requests that take long.
WINDOW_US: Final = 300 * 1_000_000

_NUMBER: Final = re.compile(r"(\d{1,20})(?:\.(\d*))?", re.ASCII)
_CLOCK: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_ZONE: Final = r"(?: ?(?P<zone>Z|GMT|UTC|(?P<sign>[+-])(?P<hours>[01]\d):?(?P<minutes>[0-5]\d)))?"
_NAME: Final = r"(?P<month>[A-Z][a-z]{2})"

#: The shapes of times: of common logs, HAProxy and Django's own server; ISO 8601; ctime; HTTP and e-mail.
_SHAPES: Final = [
    re.compile(shape, re.ASCII)
    for shape in (
        rf"(?P<day>\d\d)/{_NAME}/(?P<year>\d{{4}})[: ]{_CLOCK}{_ZONE}",
        rf"(?P<year>\d{{4}})(?P<dash>[-/])(?P<month>\d\d)(?P=dash)(?P<day>\d\d)[T \t]{_CLOCK}{_ZONE}",
        rf"(?:[A-Z][a-z]{{2}} )?{_NAME}  ?(?P<day>\d\d?) {_CLOCK}{_ZONE} (?P<year>\d{{4}})",
        rf"(?:[A-Z][a-z]{{2}}, )?(?P<day>\d\d?) {_NAME} (?P<year>\d{{4}}) {_CLOCK}{_ZONE}",
    )
]

#: Maximum number of cached times: many successive lines have the same one.
_MAX_KNOWN: Final = 10_000

#: Numbers from here on are not seconds but milliseconds, microseconds or nanoseconds. As seconds they would be
#: later than the year 5138.
_NOT_SECONDS: Final = 10**11


class TimeReader:
    """Reads the times of one file, in the order of its lines. Raises ValueError for a text that is not a time.

    zone: of times without one.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._known: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        """Begin with the first line again."""
        #: The time that was read before.
        self._before_us = 0
        #: Units of numbers per second: those of the first one. 0 = none was read.
        self._units = 0
        #: The times that were read, and those of them that are whole seconds.
        self.read = self.whole = 0
        #: Whether times had no zone.
        self.lacks_zones: bool = False
        self._known.clear()

    @property
    def has_fractions(self) -> bool:
        """True if times are finer than seconds: of those that are, one in a thousand is a whole second by chance."""
        return 2 * self.whole <= self.read

    def __call__(self, text: str) -> int:
        found = self._known.get(text)
        if found is None:
            times = [*self._read(text.strip("[]"))]
            if not times:
                raise ValueError(f"has no time in {text!r:.60}")
            found = min(times, key=self._distance)
            if not 0 <= found < END_US:
                raise ValueError("has a time that is not between 1970 and 2154")
            self._before_us = found
            if len(times) == 1:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[text] = found
        self.read += 1
        self.whole += not found % 1_000_000
        return found

    def _distance(self, us: int) -> tuple[bool, int]:
        """Return how well a time fits the order of the file, in an hour that comes twice: the best is the least."""
        away = us - self._before_us
        return away < -WINDOW_US, abs(away)

    def _number(self, whole: int, fraction: str) -> int:
        """Return a number of seconds, which may have a fraction, or of whole milli-, micro- or nanoseconds, exactly.

        Raises ValueError if it has another unit than those before it.
        """
        ranges = (1, 1_000, 1_000_000, 1_000_000_000)
        units = 1 if fraction else next((each for each in ranges if whole < _NOT_SECONDS * each), ranges[-1])
        self._units = self._units or units
        if units != self._units:
            raise ValueError("has a time in another unit than the lines before it")
        return whole * 1_000_000 // units + int(f"{fraction[:6]:0<6}")

    def _read(self, text: str) -> Iterator[int]:
        """Yield the times that a text may mean, in their order."""
        if number := _NUMBER.fullmatch(text):
            yield self._number(int(number[1]), number[2] or "")
            return
        found = next((match for shape in _SHAPES if (match := shape.fullmatch(text))), None)
        if found is None:
            return
        part = found.groupdict()
        name = part["month"]
        month = int(name) if name.isdigit() else _MONTHS.index(name) + 1 if name in _MONTHS else 0
        micros = int(f"{part['fraction'] or '':0<6}"[:6])
        day = int(part["year"]), month, int(part["day"])
        try:
            moment = datetime(*day, int(part["hour"]), int(part["minute"]), int(part["second"]), micros, tzinfo=UTC)
        except ValueError:  # 31 February, for one
            return
        if part["zone"]:
            offset = timedelta(hours=int(part["hours"] or 0), minutes=int(part["minutes"] or 0))
            yield (moment - _EPOCH + (offset if part["sign"] == "-" else -offset)) // _MICROSECOND
        else:
            yield from self._in_zone(moment)

    def _in_zone(self, moment: datetime) -> Iterator[int]:
        """Yield the times at which clocks in the zone show this: none in spring, and two in autumn, of one hour."""
        self.lacks_zones = True
        found = {(moment.replace(tzinfo=self._zone, fold=fold) - _EPOCH) // _MICROSECOND for fold in (0, 1)}
        for us in sorted(found):
            shown = (_EPOCH + us * _MICROSECOND).astimezone(self._zone)
            if shown.replace(tzinfo=UTC, fold=0) == moment:
                yield us
