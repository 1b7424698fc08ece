"""Windows in words for narrow columns."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.translation import pgettext_lazy

#: Seconds, and their abbreviation.
_UNITS: Final = (
    (86_400, pgettext_lazy("days, abbreviated", "d")),
    (3_600, pgettext_lazy("hours, abbreviated", "h")),
    (60, pgettext_lazy("minutes, abbreviated", "min")),
    (1, pgettext_lazy("seconds, abbreviated", "s")),
)


def window_in_short(seconds: Any) -> str:
    """Return a window in the longest unit that divides it, for columns of lists: "d", "12 h", "0.25 s".

    A value that is not a number, in an unsaved row, is returned unchanged.
    """
    try:
        value = Decimal(str(seconds))
        found = next((each for each in _UNITS if value and not value % each[0]), _UNITS[-1])
    except InvalidOperation:
        return str(seconds)
    count = f"{value / found[0]:f}"
    count = number_format(count.rstrip("0").rstrip(".")) if "." in count else count
    return str(found[1]) if count == "1" else f"{count} {found[1]}"
