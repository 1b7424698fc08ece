"""The columns of a limit that its algorithm uses, and the labels that forms show for their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.utils.translation import gettext_lazy as _

from ..engine.calendars import CALENDARS
from ..engine.registry import ANCHORS, REFILLS, Algorithm

Choices = list[tuple[str, Any]]

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


def _choices(column: str) -> Choices:
    return [(str(word), _LABELS.get(word, word.replace("_", " "))) for word in WORDS[column]]
