"""The periods that can be selected for a forecast."""

from __future__ import annotations

from datetime import UTC, date, timedelta
from typing import Final, NamedTuple

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ...usage.reports import totals
from ...usage.reports.coverage import DAY, Period
from ...usage.times import midnight, now

YESTERDAY: Final = "yesterday"
WEEK: Final = "7d"
ONE_DAY: Final = "day"

#: The days that can be selected. Outside of these, times in some zones cannot be represented.
FIRST_DAY: Final = date(1970, 1, 2)
LAST_DAY: Final = date(2999, 12, 31)


class NamedPeriod(NamedTuple):
    """A period, and its name."""

    name: str
    period: Period


def yesterday() -> NamedPeriod:
    """Return the last whole day in the current time zone."""
    today = now().astimezone(timezone.get_current_timezone()).date()
    return NamedPeriod(_("yesterday"), one_day(today - timedelta(days=1)).period)


def last_week() -> NamedPeriod:
    """Return the last seven days up to now."""
    return NamedPeriod(_("the last 7 days"), totals.last(7 * DAY))


def one_day(day: date) -> NamedPeriod:
    """Return a day in the current time zone. Raises ValueError for one that is too far away."""
    if not FIRST_DAY <= day <= LAST_DAY:
        raise ValueError(day)
    return NamedPeriod(date_format(day), Period(*(midnight(each).astimezone(UTC) for each in (day, day + DAY))))


def read_period(text: str) -> NamedPeriod:
    """Return the period from a text such as "yesterday", "7d" or "2026-11-22". Raises ValueError for others."""
    if text == YESTERDAY:
        return yesterday()
    if text == WEEK:
        return last_week()
    try:
        return one_day(date.fromisoformat(text))
    except ValueError:
        error = _("%(text)r is not a period. Write yesterday, 7d, or a day such as 2026-11-22.") % {"text": text}
        raise ValueError(error) from None
