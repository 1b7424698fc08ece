"""The syntax of the RateLimit fields, as of draft 11, which is not final yet; nothing but this module knows it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from ..engine.limits import Limit
from ..rules.records import RuleRecord, TierRecord
from .policies import UntilMore, name_of, quota_of, until_more

#: Which draft of the RateLimit fields is sent.
DRAFT: Final = 11
#: Of how many limits it is remembered how they are shown; beyond that all are found again.
MAX_REMEMBERED: Final = 1_000
#: Structured fields hold integers of at most 15 digits (RFC 9651).
LARGEST_INTEGER: Final = 10**15 - 1


class _ParameterNames(NamedTuple):
    """The names that a draft gives to the parameters of a limit and of its state."""

    quota: str
    unit: str
    window: str
    remaining: str
    seconds: str


_PARAMETER_NAMES: Final = {11: _ParameterNames("q", "qu", "w", "r", "t")}
OURS: Final = _PARAMETER_NAMES[DRAFT]


class Policy(NamedTuple):
    """One limit as the RateLimit fields show it.

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

    until_more: what finds the seconds on an allowed response. of: its rule, tier and limit. Held, they are the only
    objects with their `id`, by which this is found again.
    """

    name: str
    item: str
    quota: str
    until_more: UntilMore
    of: tuple[object, ...]


_remembered: Final[dict[tuple[int, int, int], ShownLimit]] = {}


def shown_limit(rule: RuleRecord, tier: TierRecord | None, limit: Limit) -> ShownLimit:
    """Return how a limit of this rule and tier is shown. It is remembered: a name may take longer to find than all."""
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
    """`RateLimit` and `RateLimit-Policy` as of this draft of draft-ietf-httpapi-ratelimit-headers.

    Nothing but this and what it calls knows this syntax, which is not final yet. w is left out where the window is not
    a whole number of seconds, or there is none, t where there will never be enough, or nobody knows when.
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


def joined(limits: Sequence[str], states: Sequence[str]) -> dict[str, str]:
    return {"RateLimit-Policy": ",".join(limits), "RateLimit": ",".join(states)} if limits else {}


def quoted(name: str) -> str:
    """A string of RFC 9651: printable ASCII in quotes; anything else becomes "?"."""
    printable = "".join(char if " " <= char <= "~" else "?" for char in name)
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
