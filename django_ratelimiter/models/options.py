"""The columns of a limit that its algorithm uses, the labels of their values in forms, and short texts of windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ..engine.calendars import CALENDARS
from ..engine.limits import OPTIONS
from ..engine.registry import ANCHORS, REFILLS, Algorithm

Choices = tuple[tuple[str, Any], ...]

#: The columns with the engine's options, and the value of each that means "not set".
NOT_GIVEN: Final[Mapping[str, Any]] = {
    "quota": None,
    "window_seconds": None,
    **OPTIONS,
    "calendar": "",
    "timezone": "",
    "max_delay_ms": 0,
}

#: Seconds, and their abbreviation.
_UNITS: Final = (
    (86_400, pgettext_lazy("days, abbreviated", "d")),
    (3_600, pgettext_lazy("hours, abbreviated", "h")),
    (60, pgettext_lazy("minutes, abbreviated", "min")),
    (1, pgettext_lazy("seconds, abbreviated", "s")),
)

#: Columns with another name than the engine's option.
COLUMNS: Final = {"window": "window_seconds", "max_delay": "max_delay_ms"}

#: The possible values of columns with a choice of words.
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
    """Return the columns out of NOT_GIVEN that an algorithm uses; all of them if it is unknown."""
    if algorithm not in set(Algorithm):
        return frozenset(NOT_GIVEN)
    options = {COLUMNS.get(option, option) for option in Algorithm(algorithm).options}
    of_some = {COLUMNS.get(option, option) for each in Algorithm for option in each.options}
    used = NOT_GIVEN.keys() - (of_some - options)
    if not calendar or "calendar" not in options:
        return frozenset(used - {"timezone", "anchor_day"})
    return frozenset(used - {"window_seconds", "anchor"} - ({"anchor_day"} if calendar != "month" else set()))


def choices_of(column: str) -> Choices:
    """Return the choices of a column. Fields call this, so that a new algorithm needs no migration."""
    return tuple([(str(word), _LABELS.get(word, word.replace("_", " "))) for word in WORDS[column]])


def window_in_short(seconds: Any) -> str:
    """Return a window in the longest unit that divides it, for the list of rules: "d", "12 h", "0.25 s".

    A value that is not a number, in an unsaved row, is returned unchanged.
    """
    try:
        value = Decimal(str(seconds))
        found = next((each for each in _UNITS if value and not value % each[0]), _UNITS[-1])
    except InvalidOperation:
        return str(seconds)
    count = f"{value / found[0]:f}"
    count = count.rstrip("0").rstrip(".") if "." in count else count
    return str(found[1]) if count == "1" else f"{count} {found[1]}"
