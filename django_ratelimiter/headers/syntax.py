"""The syntax of the RateLimit fields in draft 11, which is not final. No other module depends on the syntax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from ..engine.limits import Limit
from ..rules.records import RuleRecord, TierRecord
from .policies import UntilMore, name_of, quota_of, until_more

#: The draft of the RateLimit fields that is sent.
DRAFT: Final = 11
#: Maximum number of limits in the cache; then all are computed again.
MAX_REMEMBERED: Final = 1_000
#: Maximum characters of RateLimit and RateLimit-Policy together: the usual buffers of proxies hold 4 kB of all fields.
MAX_LENGTH: Final = 1_000
#: Integers in structured fields have at most 15 digits (RFC 9651).
LARGEST_INTEGER: Final = 10**15 - 1


class _ParameterNames(NamedTuple):
    """The parameter names of a draft, for a limit and its state."""

    quota: str
    unit: str
    window: str
    remaining: str
    seconds: str


_PARAMETER_NAMES: Final = {11: _ParameterNames("q", "qu", "w", "r", "t")}
OURS: Final = _PARAMETER_NAMES[DRAFT]


class Policy(NamedTuple):
    """One limit in the RateLimit fields.

    window: seconds; `None` = it has no fixed length, or there is none.
    seconds: until there is more quota; `None` = never, for this cost, or not known.
    unit: what the quota counts; `None` = requests.
    """

    name: str
    quota: int
    window: float | Decimal | None
    remaining: int
    seconds: int | None
    unit: str | None = None


class ShownLimit(NamedTuple):
    """The parts of a limit that do not depend on its state: name in quotes, item of RateLimit-Policy, quota.

    until_more: returns the seconds on an allowed response. of: its rule, tier and limit. The references keep their `id`
    unique, which is the key of the cache.
    """

    name: str
    item: str
    quota: str
    until_more: UntilMore
    of: tuple[object, ...]


_remembered: Final[dict[tuple[int, int, int], ShownLimit]] = {}


def shown_limit(rule: RuleRecord, tier: TierRecord | None, limit: Limit) -> ShownLimit:
    """Return how a limit of this rule and tier is shown. Cached, because finding its name may take long."""
    shown = _remembered.get((id(rule), id(tier), id(limit)))
    if shown is not None:
        return shown
    name = quoted(name_of(rule, tier, limit))
    if len(_remembered) >= MAX_REMEMBERED:
        _remembered.clear()
    units, window, unit = quota_of(limit)
    shown = ShownLimit(
        name, item_of(name, units, window, unit, OURS), str(units), until_more(limit), (rule, tier, limit)
    )
    _remembered[id(rule), id(tier), id(limit)] = shown
    return shown


def ratelimit_fields(policies: Sequence[Policy], draft: int = DRAFT) -> dict[str, str]:
    """Return `RateLimit` and `RateLimit-Policy` in this draft of draft-ietf-httpapi-ratelimit-headers.

    Only this function and those that it calls depend on the syntax, which is not final. w is omitted if the window is
    not a whole number of seconds, or there is none; t if there will never be enough quota, or the time is not known.
    """
    names = _PARAMETER_NAMES[draft]
    return joined(
        [item_of(quoted(one.name), one.quota, one.window, one.unit, names) for one in policies],
        [state_of(quoted(one.name), one.remaining, one.seconds, names) for one in policies],
    )


def item_of(name: str, quota: int, window: float | Decimal | None, unit: str | None, names: _ParameterNames) -> str:
    item = f"{name};{names.quota}={min(quota, LARGEST_INTEGER)}"
    if unit is not None:
        item += f";{names.unit}={quoted(unit)}"
    return f"{item};{names.window}={int(window)}" if window is not None and window == int(window) else item


def state_of(name: str, remaining: int, seconds: int | None, names: _ParameterNames) -> str:
    if remaining > LARGEST_INTEGER:
        remaining = LARGEST_INTEGER
    state = f"{name};{names.remaining}={remaining}"
    return state if seconds is None else f"{state};{names.seconds}={seconds}"


def joined(
    limits: Sequence[str], states: Sequence[str], tightness: Callable[[], Sequence[float]] | None = None
) -> dict[str, str]:
    """Return the fields of these limits. tightness: for `fitting`, if they are too long; `None` = no maximum length."""
    policy, state = ",".join(limits), ",".join(states)
    if tightness is not None and len(policy) + len(state) > MAX_LENGTH:
        limits, states = fitting(tightness(), limits, states)
        policy, state = ",".join(limits), ",".join(states)
    return {"RateLimit-Policy": policy, "RateLimit": state} if limits else {}


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
