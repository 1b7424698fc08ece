"""The syntax of the RateLimit fields in draft 11, which is not final. No other module depends on the syntax."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from ..engine.limits import Limit
from ..rules.records import RuleRecord, TierRecord
from .policies import UntilMore, name_of, quota_of, until_more

#: Maximum number of limits in the cache; then all are computed again.
MAX_REMEMBERED: Final = 1_000
#: Maximum characters of RateLimit and RateLimit-Policy together: the usual buffers of proxies hold 4 kB of all fields.
MAX_LENGTH: Final = 1_000
#: Integers in structured fields have at most 15 digits (RFC 9651).
LARGEST_INTEGER: Final = 10**15 - 1


class ShownLimit(NamedTuple):
    """The parts of a limit that do not depend on its state.

    name: without quotes. item: of RateLimit-Policy. state: the start of its item in RateLimit, before the remaining
    units. quota: as callers see it. capacity: of its counter. most: the highest number of remaining units to show.
    until_more: returns the seconds on an allowed response; `None` = those until the reset. of: its rule, tier and
    limit. The references keep their `id` unique, which is the key of the cache.
    """

    name: str
    item: str
    state: str
    quota: str
    capacity: int
    most: int
    until_more: UntilMore | None
    of: tuple[object, ...]


_remembered: Final[dict[tuple[int, int, int], ShownLimit]] = {}


def shown_limit(rule: RuleRecord, tier: TierRecord | None, limit: Limit) -> ShownLimit:
    """Return how a limit of this rule and tier is shown. Cached, because finding its name may take long."""
    shown = _remembered.get((id(rule), id(tier), id(limit)))
    if shown is not None:
        return shown
    if len(_remembered) >= MAX_REMEMBERED:
        _remembered.clear()
    name = name_of(rule, tier, limit)
    units, window, unit = quota_of(limit)
    capacity = limit.quota if limit.burst is None else limit.burst
    shown = _remembered[id(rule), id(tier), id(limit)] = ShownLimit(
        name,
        _item_of(quoted(name), units, window, unit),
        f"{quoted(name)};r=",
        str(units),
        capacity,
        LARGEST_INTEGER,
        until_more(limit),
        (rule, tier, limit),
    )
    return shown


def _item_of(name: str, quota: int, window: float | Decimal | None, unit: str | None) -> str:
    """Return an item of RateLimit-Policy. w is omitted if the window is not a whole number of seconds."""
    item = f"{name};q={min(quota, LARGEST_INTEGER)}"
    if unit is not None:
        item += f";qu={quoted(unit)}"
    return f"{item};w={int(window)}" if window is not None and window == int(window) else item


def fitting(tightness: Sequence[float], *columns: Sequence[str]) -> list[list[str]]:
    """Return the rows of these columns that fit into MAX_LENGTH together: the tightest, at least one.

    tightness: of each row; the lowest come first, see `decision.tightness_of`.
    """
    places, left = sorted(range(len(tightness)), key=tightness.__getitem__), MAX_LENGTH
    for number, place in enumerate(places):
        left -= sum([len(column[place]) + 1 for column in columns])
        if left < 0 and number:
            del places[number:]
            break
    return [[column[place] for place in sorted(places)] for column in columns]


def quoted(name: str) -> str:
    """Return a string of RFC 9651: printable ASCII in quotes; other characters become "?"."""
    printable = "".join(char if " " <= char <= "~" else "?" for char in name)
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
