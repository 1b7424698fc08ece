"""Times in access logs, as integer microseconds since the Unix epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from time import time
from typing import Final

from ...engine.limits import END_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400 * 1_000_000
_MONTHS: Final = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905

#: How far lines may be from their order: written by several processes, or at the end of requests that take long.
WINDOW_US: Final = 300 * 1_000_000

_NO_TIME: Final = "has no time in {!r:.60}"
_NUMBER: Final = re.compile(r"(\d{1,20})(?:\.(\d*))?", re.ASCII)
_CLOCK: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_ZONE: Final = r"(?: ?(?P<zone>Z|GMT|UTC|(?P<sign>[+-])(?P<hours>[01]\d):?(?P<minutes>[0-5]\d)))?"
_NAME: Final = r"(?P<month>[A-Z][a-z]{2})"

#: The shapes of times: of common logs, HAProxy and Django's own server; ISO 8601; ctime and syslog; HTTP and e-mail.
_SHAPES: Final = [
    re.compile(shape, re.ASCII)
    for shape in (
        rf"(?P<day>\d\d)/{_NAME}/(?P<year>\d{{4}})[: ]{_CLOCK}{_ZONE}",
        rf"(?P<year>\d{{4}})(?P<dash>[-/])(?P<month>\d\d)(?P=dash)(?P<day>\d\d)[T \t]{_CLOCK}{_ZONE}",
        rf"(?:[A-Z][a-z]{{2}} )?{_NAME}  ?(?P<day>\d\d?) {_CLOCK}{_ZONE}(?: (?P<year>\d{{4}}))?",
        rf"(?:[A-Z][a-z]{{2}}, )?(?P<day>\d\d?) {_NAME} (?P<year>\d{{4}}) {_CLOCK}{_ZONE}",
    )
]

#: Maximum number of cached times, and of cached minutes of common logs: many successive lines have the same one.
_MAX_KNOWN: Final = 10_000

#: The seconds of a minute, as text.
_SECONDS: Final = {f"{second:02}": second * 1_000_000 for second in range(60)}

#: Numbers from here on are not seconds but milliseconds, microseconds or nanoseconds. As seconds they would be
#: later than the year 5138.
_NOT_SECONDS: Final = 10**11


class TimeReader:
    """Reads the times of one file, in the order of its lines. Raises ValueError for a text that is not a time.

    zone: of times without one. latest_us: the file has no later line; it decides the year of the first line if the log
    has no years.
    """

    def __init__(self, zone: tzinfo, latest_us: int | None = None) -> None:
        self._zone, self._latest_us = zone, latest_us or int(time() * 1_000_000)
        self._known: dict[str, int] = {}
        self._minutes: dict[str, int] = {}
        #: The time that was read before.
        self._before_us: int | None = None
        #: Units of numbers per second: those of the first one. 0 = none was read.
        self._units = 0
        #: What the times that were read lack: "years", "zones".
        self.lacks = set[str]()
        #: The times that were read, and those of them that are whole seconds.
        self.read = self.whole = 0

    def restart(self) -> None:
        """Begin with the first line again."""
        self._before_us, self._units, self.read, self.whole = None, 0, 0, 0
        self._known.clear()
        self._minutes.clear()
        self.lacks.clear()

    @property
    def has_fractions(self) -> bool:
        """True if times are finer than seconds: of those that are, one in a thousand is a whole second by chance."""
        return 2 * self.whole <= self.read

    def __call__(self, text: str) -> int:
        found = self._known.get(text)
        if found is None:
            found, is_sure = self._read(text.strip("[]"))
            if not 0 <= found < END_US:
                raise ValueError("has a time that is not between 1970 and 2154")
            self._before_us = found
            if is_sure:
                _remember(self._known, text, found)
        self.read += 1
        self.whole += not found % 1_000_000
        return found

    def _read(self, text: str) -> tuple[int, bool]:
        """Return a time, and whether it is the same on each line."""
        if text[2:3] == "/" and text[17:18] == ":" and (second := _SECONDS.get(text[18:20])) is not None:
            minute = f"{text[:18]}00{text[20:]}"
            begin = self._minutes.get(minute)
            if begin is not None:
                return begin + second, True
            begin, is_sure = self._among(minute, [*self._candidates(minute)], second)
            if is_sure:
                _remember(self._minutes, minute, begin)
            return begin + second, is_sure
        if found := _NUMBER.fullmatch(text):
            return self._number(int(found[1]), found[2] or ""), True
        return self._among(text, [*self._candidates(text)])

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

    def _among(self, text: str, candidates: list[int], second_us: int = 0) -> tuple[int, bool]:
        """Return the candidate that fits the order of the file: without a year or in an hour that comes twice."""
        if not candidates:
            raise ValueError(_NO_TIME.format(text))
        if len(candidates) == 1:
            return candidates[0], True
        year_us = 365 * _DAY_US
        before = self._before_us
        if before is None:  # a year until the latest line that may be
            before = self._latest_us + _DAY_US - year_us // 2 if candidates[-1] - candidates[0] > _DAY_US else 0

        def distance(us: int) -> tuple[bool, bool, int]:
            away = us + second_us - before
            return abs(away) > year_us // 2, away < -WINDOW_US, abs(away)

        return min(candidates, key=distance), False

    def _candidates(self, text: str) -> Iterator[int]:
        """Yield the times that a text may mean, in their order."""
        found = next((match for shape in _SHAPES if (match := shape.fullmatch(text))), None)
        if found is None:
            return
        part = found.groupdict()
        name = part["month"]
        month = int(name) if name.isdigit() else _MONTHS.index(name) + 1 if name in _MONTHS else 0
        micros = int(f"{part['fraction'] or '':0<6}"[:6])
        years = [int(part["year"])] if part["year"] else self._years()
        for year in years:
            try:
                clock = int(part["hour"]), int(part["minute"]), int(part["second"])
                moment = datetime(year, month, int(part["day"]), *clock, micros, tzinfo=UTC)
            except ValueError:  # 29 February, for one
                continue
            if part["zone"]:
                offset = timedelta(hours=int(part["hours"] or 0), minutes=int(part["minutes"] or 0))
                yield _to_us(moment) - (-1 if part["sign"] == "-" else 1) * _to_us(_EPOCH + offset)
            else:
                yield from self._in_zone(moment)

    def _years(self) -> list[int]:
        """Return the years that a time without one may mean."""
        self.lacks.add("years")
        year = datetime.fromtimestamp((self._before_us or self._latest_us) / 1_000_000, UTC).year
        return [year - 1, year, year + 1]

    def _in_zone(self, moment: datetime) -> Iterator[int]:
        """Yield the times at which clocks in the zone show this: none in spring, and two in autumn, of one hour."""
        self.lacks.add("zones")
        found = {_to_us(moment.replace(tzinfo=self._zone, fold=fold)) for fold in (0, 1)}
        for us in sorted(found):
            shown = (_EPOCH + timedelta(microseconds=us)).astimezone(self._zone)
            if shown.replace(tzinfo=UTC, fold=0) == moment:
                yield us


def _remember(cache: dict[str, int], text: str, us: int) -> None:
    if len(cache) >= _MAX_KNOWN:
        cache.clear()
    cache[text] = us


def _to_us(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
