"""Adds up samples in one pass: the peaks of callers, requests above thresholds, and top callers. Pure functions."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .cells import MINUTE_SECONDS, Width

HOUR_SECONDS: Final = 3_600

#: Maximum number of top callers: those with the most requests in a cell.
MAX_CALLERS: Final = 25

#: Maximum number of distinct pairs of a cell and a number of requests; then they are added up.
MAX_PAIRS: Final = 50_000

#: Thresholds by tier; a missing tier has none.
ByTier = Mapping[str, int]


class Cells(dict[Any, int]):
    """The start of the cell that contains a minute, by the minute as it was read. Seconds since the Unix epoch."""

    def __init__(self, width: Width, period: tuple[int, int], seconds: Mapping[Any, int] | None) -> None:
        super().__init__()
        self._width, self._seconds = width.seconds, seconds
        self._starts = width.starts(*period) if width.calendar else None

    def __missing__(self, minute: Any) -> int:
        seconds = minute if self._seconds is None else self._seconds[minute]
        if self._starts is None:
            found = seconds // self._width * self._width
        else:
            found = self._starts[max(0, bisect_right(self._starts, seconds) - 1)]
        self[minute] = found
        return found


class TopCaller(NamedTuple):
    """A caller with its requests by width and cell, and by minute. Sorts by its peak, highest first."""

    negative_peak: int
    tier: str
    who: str
    requests: int
    cells: Mapping[Width, Mapping[int, int]]
    minutes: Mapping[int, int]

    def first_beyond(self, start: int, threshold: int) -> int:
        """Return the minute of the first request above a threshold in the cell with this start."""
        total, minutes = 0, sorted(each for each in self.minutes if each >= start)
        for minute in minutes:
            total += self.minutes[minute]
            if total > threshold:
                return minute
        return start


class _WidthStep(NamedTuple):
    """How the cells of a width are found. lowest: the lowest threshold of each tier.

    finer: the index of a finer width whose cells make up these; -1 = the minutes do. `None` = a minute is a cell
    itself, and `cell_of` is its hour. long: cells longer than an hour, by seconds; `None` = they are not.
    """

    width: Width
    cell_of: Cells
    finer: int | None
    lowest: Mapping[str, int]
    long: Cells | None


class SampleTally:
    """The sums of callers, which are added one by one with `add`.

    thresholds: for each width, those of `beyond`. period: its ends in seconds. seconds: the
    start of each minute; `None` = minutes are seconds already.
    Memory: 8 bytes for each caller and width in `peaks`; MAX_PAIRS pairs; the minutes of MAX_CALLERS callers; and
    numbers for each tier and cell. No object is kept for a sample.
    """

    def __init__(
        self,
        widths: Sequence[Width],
        thresholds: Mapping[Width, Sequence[ByTier]],
        period: tuple[int, int],
        seconds: Mapping[Any, int] | None = None,
    ) -> None:
        self.widths = list(widths)
        self._thresholds = thresholds
        self._hour_of = Cells(Width(HOUR_SECONDS), period, seconds)
        self._seconds = seconds
        self._steps = [self._step_of(place, period, seconds) for place in range(len(self.widths))]
        self._pairs = [defaultdict[str, Counter[tuple[int, int, int]]](Counter) for _ in self.widths]
        self._beyond: list[dict[tuple[str, int], list[int]]] = [{} for _ in self.widths]
        self._waiting = 0
        #: By tier, the most requests in one cell of each width, with callers in the same order.
        self.peaks: defaultdict[str, list[array[int]]] = defaultdict(lambda: [array("q") for _ in self.widths])
        #: The requests of the sampled callers by tier.
        self.requests: Counter[str] = Counter()
        #: The callers with the most requests in one cell of the first width.
        self.top: list[TopCaller] = []

    def add(self, tier: str, who: str, minutes: Iterable[Any], counts: Sequence[int]) -> None:
        """Add a caller of a tier, with its requests in each of these minutes, which are distinct.

        minutes: only read if cells are longer than a minute, or if a minute exceeds a threshold.
        """
        self.requests[tier] += (requests := sum(counts))
        of_tier = self.peaks[tier]
        found: list[dict[int, int]] = []
        first = 0
        for place, (_width, cell_of, finer, lowest, long) in enumerate(self._steps):
            if finer is None:
                cells = {}
                peak = max(counts)
            else:
                of_finer = (minutes, counts) if finer < 0 else (found[finer].keys(), found[finer].values())
                cells = _summed(cell_of, *of_finer)
                peak = max(cells.values())
            found.append(cells)
            of_tier[place].append(peak)
            first = first or peak
            threshold = lowest.get(tier)
            if threshold is not None and peak > threshold:
                pairs = zip(map(cell_of.__getitem__, minutes), counts, strict=True) if finer is None else cells.items()
                if long is None:
                    self._count(place, tier, [(at, 0, count) for at, count in pairs if count > threshold])
                else:
                    hours = self._by_hour(long, minutes, counts)
                    self._count(place, tier, [each for each in hours if each[2] > threshold])
        top = self.top
        if len(top) < MAX_CALLERS or (-first, tier, who) < top[-1][:3]:
            insort(top, TopCaller(-first, tier, who, requests, *self._named(found, minutes, counts)))
            del top[MAX_CALLERS:]

    def beyond(self, width: Width) -> Mapping[tuple[str, int], Sequence[int]]:
        """Return the requests above each threshold of a width, by tier and start of the cell.

        For minutes, and for cells longer than an hour, by the hour.
        """
        self._settle()
        return self._beyond[self.widths.index(width)]

    def sampled(self, tier: str) -> int:
        """Return the number of callers of a tier that were added."""
        return len(self.peaks[tier][0]) if tier in self.peaks else 0

    def peaks_of(self, tier: str, width: Width) -> Sequence[int]:
        """Return the peaks of the callers of a tier, in the same order for each width."""
        return self.peaks[tier][self.widths.index(width)] if tier in self.peaks else ()

    def _step_of(self, place: int, period: tuple[int, int], seconds: Mapping[Any, int] | None) -> _WidthStep:
        width, lowest = self.widths[place], dict[str, int]()
        for each in self._thresholds.get(width, ()):
            for tier, threshold in each.items():
                lowest[tier] = min(threshold, lowest.get(tier, threshold))
        if _is_minute(width):
            return _WidthStep(width, self._hour_of, None, lowest, None)
        finer = max((at for at in range(place) if _fits(self.widths[at], width)), default=-1)
        long = Cells(width, period, None) if width.calendar or width.seconds > HOUR_SECONDS else None
        return _WidthStep(width, Cells(width, period, seconds if finer < 0 else None), finer, lowest, long)

    def _named(self, found: list[dict[int, int]], minutes: Iterable[Any], counts: Sequence[int]) -> Any:
        """Return the cells by width, those of a minute included, and the minutes."""
        by_minute = dict(self._by_minute(minutes, counts))
        cells_by_width = {
            step.width: by_minute if step.finer is None else cells
            for step, cells in zip(self._steps, found, strict=True)
        }
        return cells_by_width, by_minute

    def _by_minute(self, minutes: Iterable[Any], counts: Sequence[int]) -> Iterable[tuple[int, int]]:
        starts = minutes if self._seconds is None else map(self._seconds.__getitem__, minutes)
        return zip(starts, counts, strict=True)

    def _by_hour(self, cells: Cells, minutes: Iterable[Any], counts: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """Yield each hour, with the requests of its cell before it and at its end."""
        hours: dict[tuple[int, int], int] = {}
        for start, count in self._by_minute(minutes, counts):
            key = cells[start], start - start % HOUR_SECONDS
            hours[key] = hours.get(key, 0) + count
        last, total = -1, 0
        for (cell, hour), count in sorted(hours.items()):
            total = total if cell == last else 0
            yield hour, total, total + count
            last, total = cell, total + count

    def _count(self, place: int, tier: str, found: Sequence[tuple[int, int, int]]) -> None:
        """Count the requests of a cell before a time, and at that time."""
        counted = self._pairs[place][tier]
        before = len(counted)
        counted.update(found)
        self._waiting += len(counted) - before
        if self._waiting > MAX_PAIRS:
            self._settle()

    def _settle(self) -> None:
        """Add up the requests above thresholds of the pairs that were counted."""
        for place, by_tier in enumerate(self._pairs):
            thresholds = self._thresholds.get(self.widths[place], ())
            sums = self._beyond[place]
            for tier, pairs in by_tier.items():
                of_tier = [(at, each[tier]) for at, each in enumerate(thresholds) if tier in each]
                for (start, earlier, requests), times in pairs.items():
                    row = sums.setdefault((tier, start), [0] * len(thresholds))
                    for at, threshold in of_tier:
                        if requests > threshold:
                            row[at] += times * (requests - max(threshold, earlier))
            by_tier.clear()
        self._waiting = 0


def _summed(cell_of: Cells, minutes: Iterable[Any], counts: Iterable[int]) -> dict[int, int]:
    """Return the requests of each cell. Minutes are mostly sorted, so one lookup of a cell serves several."""
    sums: dict[int, int] = {}
    last, total = -1, 0
    for cell, count in zip(map(cell_of.__getitem__, minutes), counts, strict=True):
        if cell == last:
            total += count
        else:
            sums[last] = sums[last] + total if last in sums else total
            last, total = cell, count
    sums[last] = sums[last] + total if last in sums else total
    del sums[-1]
    return sums


def _is_minute(width: Width) -> bool:
    return width.seconds <= MINUTE_SECONDS and not width.calendar


def _fits(finer: Width, width: Width) -> bool:
    """Return whether cells of one width consist of whole cells of another one."""
    return not (_is_minute(finer) or finer.calendar or width.calendar or width.seconds % finer.seconds)
