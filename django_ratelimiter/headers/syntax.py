"""How callers see a limit: its name, quota and window, and the syntax of the RateLimit fields in draft 11.

The draft is not final. No other module depends on the syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import count
from math import ceil
from operator import attrgetter
from typing import Final, NamedTuple

from ..decision import Owner, Result
from ..engine.limits import Limit
from ..rules.records import RuleRecord, TierRecord

#: Maximum number of limits in the cache; then all are computed again.
MAX_REMEMBERED: Final = 1_000
#: Maximum characters of RateLimit and RateLimit-Policy together: the usual buffers of proxies hold 4 kB of all fields.
MAX_LENGTH: Final = 1_000
#: Integers in structured fields have at most 15 digits (RFC 9651).
LARGEST_INTEGER: Final = 10**15 - 1

#: Returns the seconds until there is more quota, from the remaining units and the seconds until the full quota is back;
#: `None` = the quota is full, or the time is not known.
UntilMore = Callable[[int, float], int | None]


class Quota(NamedTuple):
    """A limit as callers see it.

    units: never less than can remain. window: seconds in which that many units come back; `None` = no fixed length, or
    no window. unit: `None` = requests.
    """

    units: int
    window: float | Decimal | None
    unit: str | None = None


def quota_of(limit: Limit) -> Quota:
    """Return the quota that callers see: for a bucket its capacity, and the time in which that comes back.

    Such a time is rounded up to whole seconds, unless it is below one second. Requests in progress have no window:
    the window of their limit only ends leases that were never released.
    """
    unit = limit.traits.unit
    if limit.holds_leases:
        return Quota(limit.quota, None, unit)
    if not limit.is_bucket or limit.capacity == limit.quota:
        return Quota(limit.capacity, limit.window, unit)
    if limit.refill == "interval":
        seconds = Fraction(limit.window_us, 1_000_000) * -(-limit.capacity // limit.quota)
    else:
        seconds = Fraction(limit.capacity * limit.window_us, limit.quota * 1_000_000)
    return Quota(limit.capacity, ceil(seconds) if seconds > 1 else float(seconds), unit)


def until_more(limit: Limit) -> UntilMore | None:
    """Return a function that computes the `t` of this limit on an allowed response; `None` = the time until its reset.

    For a bucket it is the time in which the remaining units r come back. So r / t is the bucket's own rate: a caller
    that spreads r over t, or uses r and waits t, can continue at that rate. The time until the bucket is full would be
    1 second if 3,599 of 3,600 per hour remain, and suggest 3,599 requests in a second.
    """
    if limit.holds_leases:
        return lambda remaining, reset: None
    if not limit.is_bucket:
        return None
    seconds, units = Fraction(limit.window_us, limit.quota * 1_000_000).as_integer_ratio()

    def as_it_flows(remaining: int, reset: float) -> int:
        return -(-remaining * seconds // units) if remaining else _until_next(limit, reset)

    return partial(_at_interval, limit) if limit.refill == "interval" else as_it_flows


def _until_next(limit: Limit, reset: float) -> int:
    """Return the seconds until the next unit is back; longer if the maximum delay makes the queue shorter."""
    others = (limit.capacity - 1) * limit.window_us / (limit.quota * 1_000_000)
    return _rounded_up(reset - others if others < reset else reset)


def _at_interval(limit: Limit, remaining: int, reset: float) -> int:
    window = limit.window_us / 1_000_000
    missing = limit.capacity - remaining
    next_refill = reset - (-(-missing // limit.quota) - 1) * window if missing else window
    return _rounded_up(next_refill + max(-(-remaining // limit.quota) - 1, 0) * window)


def _rounded_up(seconds: float) -> int:
    return max(1, ceil(round(seconds, 6)))  # times are whole microseconds; floats add an error


def name_of(rule: RuleRecord, tier: TierRecord | None, limit: Limit) -> str:
    """Return the name of a limit in responses. If a rule has several, the oldest has the rule's slug alone.

    Each later one has the first of these names that no older one has: the slug; with its window; with its algorithm,
    too; with other options that differ from the default; with a number. So adding a limit renames no other.
    """
    named: dict[str, Limit] = {}
    for record in rule.limits_for(tier):
        name = next(name for name in _names(rule.slug, record.limit) if name not in named)
        named[name] = record.limit
    exact = [name for name, each in named.items() if each.tag == limit.tag]  # else a caller's own months
    return next(iter(exact or [name for name, each in named.items() if each.is_counted_in(limit.tag)]), rule.slug)


def _names(slug: str, limit: Limit) -> Iterator[str]:
    yield (name := slug)
    for part in (_period, attrgetter("algorithm"), _variant):
        if own := part(limit):
            yield (name := f"{name}-{own}")
    yield from (f"{name}-{number}" for number in count(2))


def _period(limit: Limit) -> str:
    return limit.calendar or f"{Decimal(str(limit.window)).normalize():f}"


def _variant(limit: Limit) -> str:
    """Return the options that differ from the defaults; empty for a limit that has all defaults."""
    words = [word for word in (limit.anchor, limit.refill) if word in ("first_request", "interval")]
    words += [str(number) for number in (limit.slots, limit.anchor_day) if number is not None]
    return "-".join([*words, *filter(None, [limit.timezone])])


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


def shown_limit(owner: Owner | Result) -> ShownLimit:
    """Return how a limit of a rule and tier is shown. Cached, because finding its name may take long."""
    rule, tier, limit = owner.rule, owner.tier, owner.limit
    shown = _remembered.get((id(rule), id(tier), id(limit)))
    if shown is not None:
        return shown
    if len(_remembered) >= MAX_REMEMBERED:
        _remembered.clear()
    name, (units, window, unit) = name_of(rule, tier, limit), quota_of(limit)
    item = f"{quoted(name)};q={min(units, LARGEST_INTEGER)}" + ("" if unit is None else f";qu={quoted(unit)}")
    if window is not None and window == int(window):  # w is a whole number of seconds
        item += f";w={int(window)}"
    shown = _remembered[id(rule), id(tier), id(limit)] = ShownLimit(
        name,
        item,
        f"{quoted(name)};r=",
        str(units),
        limit.capacity,
        LARGEST_INTEGER,
        until_more(limit),
        (rule, tier, limit),
    )
    return shown


def fitting(tightness: Sequence[float], *columns: Sequence[str]) -> list[list[str]]:
    """Return the rows of these columns that fit into MAX_LENGTH together: the tightest, at least one.

    tightness: of each row; the lowest come first: below 0 = rejected, from 0 to 1 = the remaining share.
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
