"""Rejected requests by the hour: by the old rule, and beside it by the new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...forecast.samples.results import HourForecast
from ...rules.formatting import units
from ...usage.reports.chart import percent


class HourBars(NamedTuple):
    """Two bars of one hour. Positions in per cent. words: the hour and its figures."""

    slot_x: str
    slot_width: str
    before: dict[str, str]
    after: dict[str, str]
    words: str


def draw(hours: Sequence[HourForecast], words: Sequence[str]) -> dict[str, Any]:
    """Return the bars; `top` is the number at the upper end, as text."""
    top = max((side.about for hour in hours for side in (hour.before, hour.after)), default=0) or 1
    slot = 100 / max(len(hours), 1)
    pairs = [
        HourBars(
            percent(place * slot),
            percent(slot),
            _bar(place * slot + 0.1 * slot, 0.4 * slot, hour.before.about / top),
            _bar(place * slot + 0.5 * slot, 0.4 * slot, hour.after.about / top),
            text,
        )
        for place, (hour, text) in enumerate(zip(hours, words, strict=True))
    ]
    return {"pairs": pairs, "top": units(round(top))}


def _bar(x: float, width: float, share: float) -> dict[str, str]:
    return {
        "x": percent(x),
        "width": percent(width),
        "y": percent(100 - 100 * share),
        "height": percent(100 * share),
    }
