"""The columns of a limit that its algorithm uses, the labels that forms show for their values, and windows in short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ..engine.calendars import CALENDARS
from ..engine.registry import ANCHORS, REFILLS, Algorithm

Choices = tuple[tuple[str, Any], ...]

#: The columns that the engine's options are kept in, and what each holds where the option is not given.
NOT_GIVEN: Final[Mapping[str, Any]] = {
    "quota": None,
    "window_seconds": None,
    "burst": None,
    "soft_quota": None,
    "slots": None,
    "anchor": ANCHORS[0],
    "refill": REFILLS[0],
    "calendar": "",
    "timezone": "",
    "anchor_day": None,
    "max_delay_ms": 0,
}

#: Seconds, and how they are abbreviated.
_UNITS: Final = (
    (86_400, pgettext_lazy("days, abbreviated", "d")),
    (3_600, pgettext_lazy("hours, abbreviated", "h")),
    (60, pgettext_lazy("minutes, abbreviated", "min")),
    (1, pgettext_lazy("seconds, abbreviated", "s")),
)

#: The columns whose names are not the engine's.
COLUMNS: Final = {"window": "window_seconds", "max_delay": "max_delay_ms"}

#: What the columns hold that know a few words only.
WORDS: Final[Mapping[str, Iterable[str]]] = {
    "algorithm": tuple(Algorithm),
    "anchor": ANCHORS,
    "refill": REFILLS,
    "calendar": ("", *CALENDARS),
}

_LABELS: Final[Mapping[str, Any]] = {
    **{algorithm.value: _(algorithm.traits.label) for algorithm in Algorithm if algorithm.traits.label},
    "clock": _("by the clock"),
    "first_request": _("with the first request"),
    "continuous": _("continuously"),
    "interval": _("all at once"),
    "": _("none"),
    "day": _("day"),
    "week": _("week, from Monday"),
    "month": _("month"),
    "year": _("year"),
}


@lru_cache(maxsize=256)
def columns_used(algorithm: str, calendar: str = "") -> frozenset[str]:
    """The columns out of NOT_GIVEN that mean something for an algorithm; all of them if it is unknown."""
    if algorithm not in set(Algorithm):
        return frozenset(NOT_GIVEN)
    options = {COLUMNS.get(option, option) for option in Algorithm(algorithm).options}
    used = {"quota", "window_seconds", "soft_quota"} | options
    if not calendar or "calendar" not in options:
        return frozenset(used - {"timezone", "anchor_day"})
    return frozenset(used - {"window_seconds", "anchor"} - ({"anchor_day"} if calendar != "month" else set()))


# The choices are callables, so that a new algorithm needs no migration.


def algorithm_choices() -> Choices:
    """The algorithms that the engine has."""
    return _choices("algorithm")


def anchor_choices() -> Choices:
    """Return the choices for the start of fixed windows."""
    return _choices("anchor")


def refill_choices() -> Choices:
    """Return the choices for the refill of tokens."""
    return _choices("refill")


def calendar_choices() -> Choices:
    """The calendar's units, and none."""
    return _choices("calendar")


@cache
def _choices(column: str) -> Choices:
    return tuple([(str(word), _LABELS.get(word, word.replace("_", " "))) for word in WORDS[column]])


def window_in_short(seconds: Any) -> str:
    """Return a window in the longest unit that measures it, as the list of rules has it: "d", "12 h", "0.25 s".

    What is no number, in a row that nobody has saved, is returned as it is.
    """
    try:
        value = Decimal(str(seconds))
        found = next((each for each in _UNITS if value and not value % each[0]), _UNITS[-1])
    except InvalidOperation:
        return str(seconds)
    count = f"{value / found[0]:f}"
    count = count.rstrip("0").rstrip(".") if "." in count else count
    return str(found[1]) if count == "1" else f"{count} {found[1]}"
