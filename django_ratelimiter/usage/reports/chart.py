"""A series as bars of an SVG. Positions are texts in per cent, so that no locale inserts a decimal comma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Final, NamedTuple

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ...rules.formatting import units
from .coverage import Period
from .report import TopPartitionRow
from .totals import Point

#: Minutes between two ticks on the time axis; the first that gives no more ticks than MAX_TICKS is used.
SPACINGS: Final = (5, 10, 15, 30, 60, 180, 360, 720, 1_440, 2_880, 10_080, 20_160, 43_200, 86_400)
MAX_TICKS: Final = 8
LINES: Final = 4


class Segment(NamedTuple):
    """A part of a bar. kind: such as "allowed"; it decides the color."""

    kind: str
    x: str
    y: str
    width: str
    height: str


class Bar(NamedTuple):
    """One bucket. slot_x, slot_width: the area for the pointer, including the gap. label: its figures as text."""

    slot_x: str
    slot_width: str
    segments: list[Segment]
    label: str


class Tick(NamedTuple):
    """A label on an axis. minor: it is omitted if there is little room."""

    at: str
    label: str
    minor: bool = False


class Chart(NamedTuple):
    """The data for the template: y runs from the top, as in SVG. busiest: the highest bar as text."""

    bars: list[Bar]
    busiest: str
    lines: list[Tick]
    ticks: list[Tick]


#: What a bar consists of, from the bottom, by the names of figures. Those that correct others may be below 0.
_KIND: Final = {"allowed": "allowed", "rejected": "rejected", "other": "rejected_by_other", "shadow": "shadow_rejected"}


def draw(points: Sequence[Point]) -> Chart:
    """Return one bar for each point: allowed at the bottom, then rejected, on top what would be rejected."""
    stacks = [{kind: max(getattr(point.figures, name), 0) for kind, name in _KIND.items()} for point in points]
    return stacked(stacks, [_label(point) for point in points], _ticks([point.start for point in points]))


def top(rows: Sequence[TopPartitionRow], names: Sequence[str]) -> Chart:
    """Return one bar for each top caller, by rank. names: of the callers."""
    stacks = [{kind: each.figures[kind] or 0 for kind in ("allowed", "rejected")} for each in rows]
    words = [each.in_words() for each in rows]
    labels = [
        f"{rank}. {name}: {_('%s allowed') % each['allowed']}, {_('%s rejected') % each['rejected']}"
        for rank, (each, name) in enumerate(zip(words, names, strict=True), 1)
    ]
    slot = 100 / max(len(rows), 1)
    ticks = [Tick(percent((place + 0.5) * slot), str(place + 1), place % 5 != 0) for place in range(len(rows))]
    return stacked(stacks, labels, ticks)


def stacked(stacks: Sequence[Mapping[str, float]], labels: Sequence[str], ticks: list[Tick]) -> Chart:
    """Return a chart of bars. stacks: the amounts of each bar by kind, from the bottom."""
    heights = [sum(stack.values()) for stack in stacks]
    top = _top(ceil(max(heights, default=0)))
    busiest = labels[heights.index(max(heights))] if heights else ""
    lines = [Tick(percent(100 - 100 * i / LINES), units(top * i // LINES)) for i in range(LINES, -1, -1)]
    return Chart(bars(stacks, labels, top), busiest, lines, ticks)


def bars(stacks: Sequence[Mapping[str, float]], labels: Sequence[str], top: float = 0) -> list[Bar]:
    """Return the bars of a chart whose upper end is `top`; 0 = the highest bar."""
    top = top or max((sum(stack.values()) for stack in stacks), default=0) or 1
    slot = 100 / max(len(stacks), 1)
    gap = slot * 0.2 if len(stacks) <= 100 else 0
    found = []
    for i, (stack, label) in enumerate(zip(stacks, labels, strict=True)):
        x, base, segments = i * slot + gap / 2, 100.0, []
        for kind, amount in stack.items():
            height = 100 * amount / top
            base -= height
            if amount:
                segments.append(Segment(kind, percent(x), percent(base), percent(slot - gap), percent(height)))
        found.append(Bar(percent(i * slot), percent(slot), segments, label))
    return found


def span(point: Point | Period) -> str:
    """Return the time of a point or a period as text, in the current time zone."""
    start, end = timezone.localtime(point.start), timezone.localtime(point.end)
    day = date_format(start, _day_format())
    if start.date() != end.date() and _is_midnight(start) and _is_midnight(end):
        return day
    return f"{day}, {date_format(start, 'H:i')}\u2013{date_format(end, 'H:i')}"


def _label(point: Point) -> str:
    figures = point.figures
    labels = [_("%s allowed") % units(figures.allowed), _("%s rejected") % units(figures.rejected)]
    if figures.rejected_by_other:
        labels.append(_("%s rejected by another rule") % units(figures.rejected_by_other))
    if figures.shadow_rejected:
        labels.append(_("%s would be rejected") % units(figures.shadow_rejected))
    return f"{span(point)}: {', '.join(labels)}"


def _top(highest: int) -> int:
    """Return the end of the value axis: the next 4, 8, 12 or 20 times a power of ten, so that quarters are round."""
    power = 1
    while True:
        for quarter in (1, 2, 3, 5):
            if LINES * quarter * power >= highest:
                return LINES * quarter * power
        power *= 10


def _ticks(moments: Sequence[datetime]) -> list[Tick]:
    slot = 100 / max(len(moments), 1)
    starts = [(i * slot, timezone.localtime(moment)) for i, moment in enumerate(moments)]
    places: list[tuple[float, datetime]] = []
    for spacing in SPACINGS:
        places = [(place, local) for place, local in starts if _minutes(local) % spacing == 0]
        if len(places) <= MAX_TICKS:
            break
    days = all(_is_midnight(local) for _place, local in places)
    return [
        Tick(percent(place), date_format(local, _day_format() if days else "H:i"), minor=i % 2 == 1)
        for i, (place, local) in enumerate(places)
    ]


def _minutes(local: datetime) -> int:
    """Return the clock's minutes since some midnight."""
    return local.toordinal() * 1_440 + local.hour * 60 + local.minute


def _is_midnight(local: datetime) -> bool:
    return local.hour == local.minute == 0


def _day_format() -> str:
    return pgettext("date format of a chart's axis: the day and the month's short name", "j M")


def percent(value: float) -> str:
    """Return a position or a length for an SVG."""
    return f"{value:.4f}%"
