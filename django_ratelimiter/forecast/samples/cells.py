"""What limits would have rejected of a caller's requests, estimated from counts per minute. Pure functions.

Only the minute of a request is known. So a caller's time is split into cells: the limit's windows, but at least a
minute. The distribution of requests in a cell is not known. So each limit has three thresholds for a cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ...engine.calendars import window_at
from ...engine.limits import Limit
from ...engine.registry import ANCHORS, SIMPLEST
from ...rules.records import RuleRecord

MINUTE_SECONDS: Final = 60
MICROSECONDS: Final = 1_000_000

#: Maximum threshold: every database can compare with it, and no caller reaches it.
MAX_THRESHOLD: Final = 2**62


class Width(NamedTuple):
    """The length of cells: a number of seconds, or the windows of a calendar.

    seconds: of a calendar, those of its longest window. anchor_day: first day of its months.
    """

    seconds: int
    calendar: str = ""
    timezone: str | None = None
    anchor_day: int | None = None

    def starts(self, start: int, end: int) -> list[int]:
        """Return the starts of calendar windows that overlap [start, end), in seconds since the Unix epoch."""
        at, found = start, list[int]()
        while at < end:
            window = window_at(at * MICROSECONDS, self.calendar, self.timezone, self.anchor_day)
            found.append(window.start // MICROSECONDS)
            at = window.end // MICROSECONDS
        return found


class CellThresholds(NamedTuple):
    """Thresholds for the requests of one caller in one cell.

    most: the maximum that is ever allowed. even: this many are allowed if they are evenly spread. safe: this
    many in every cell are always allowed; `safe` <= `even` <= `most`.
    """

    most: int
    even: int
    safe: int


def cells_of(limit: Limit, cost: int = 1) -> tuple[Width, CellThresholds] | None:
    """Return the cells of a limit, and their thresholds. cost: units of a request.

    `None` = samples contain no data for it, because it limits requests in progress.
    """
    if limit.holds_leases:
        return None
    quota = limit.quota // cost
    if limit.calendar is not None:
        width = Width(limit.window_us // MICROSECONDS, limit.calendar, limit.timezone, limit.anchor_day)
        return width, _thresholds(quota, quota, quota)
    seconds = max(1, round(limit.window_us / MICROSECONDS / MINUTE_SECONDS)) * MINUTE_SECONDS
    if limit.is_bucket:
        back, burst = limit.quota * seconds * MICROSECONDS // limit.window_us, limit.capacity
        thresholds = _thresholds((burst + back) // cost, max(burst, back) // cost, min(burst, back) // cost // 2)
        return Width(seconds), thresholds
    windows, rest = divmod(seconds * MICROSECONDS, limit.window_us)
    is_fixed = limit.algorithm == SIMPLEST
    if is_fixed and limit.anchor == ANCHORS[0] and not rest:
        return Width(seconds), _thresholds(quota * windows, quota * windows, quota)
    # Windows that can begin at any time overlap the ends of cells: a window's requests may be in two of them.
    even = max(quota, quota * seconds * MICROSECONDS // limit.window_us)
    return Width(seconds), _thresholds(quota * (windows + (is_fixed or bool(rest))), even, quota // 2)


def _thresholds(most: int, even: int, safe: int) -> CellThresholds:
    return CellThresholds(min(most, MAX_THRESHOLD), min(even, MAX_THRESHOLD), min(safe, MAX_THRESHOLD))


def thresholds_of(limits: Iterable[Limit], cost: int = 1) -> dict[Width, CellThresholds]:
    """Return the thresholds of limits that all apply, by the width of their cells: the lowest of each width."""
    lowest: dict[Width, CellThresholds] = {}
    for found in (cells_of(limit, cost) for limit in limits):
        if found is not None:
            width, thresholds = found
            other = lowest.get(width, thresholds)
            lowest[width] = CellThresholds(*map(min, thresholds, other))
    return lowest


def thresholds_by_tier(rule: RuleRecord | None, tiers: Iterable[str]) -> dict[str, dict[Width, CellThresholds]]:
    """Return the thresholds of each of these tiers; without unlimited tiers. rule: `None` = no rule."""
    if rule is None or rule.is_off:
        return {tier: {} for tier in tiers}
    return {
        tier: thresholds_of((record.limit for record in rule.limits.get(tier, rule.limits.get(None, ()))), rule.cost)
        for tier in tiers
    }
