"""Estimated numbers and shares, as text."""

from __future__ import annotations

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from ...rules.formatting import units
from .estimates import Range


def number(found: Range) -> str:
    """Return a range of counts: "3", or "about 120 (30 to 400)"."""
    low, about, high = (round(each) for each in found)
    if low == about == high:
        return units(about)
    text = _("about %(about)s (%(low)s to %(high)s)")
    return text % {"about": units(about), "low": units(low), "high": units(high)}


def share(found: Range) -> str:
    """Return a range of shares, from 0 to 1, in percent: "3 %", or "about 3 % (2 to 4.5 %)"."""
    low, about, high = (decimal(100 * each) for each in found)
    if low == about == high:
        return _("%s %%") % about
    return _("about %(about)s %% (%(low)s to %(high)s %%)") % {"about": about, "low": low, "high": high}


def decimal(value: float) -> str:
    """Return a number with as many digits as matter."""
    places = 0 if value == round(value) else 3 if value < 0.1 else 2 if value < 1 else 1
    return number_format(round(value, places), decimal_pos=places)
