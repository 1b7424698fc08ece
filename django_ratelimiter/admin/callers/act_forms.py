"""From the data of the form on a caller's page to the act."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ...inspection.acts import (
    Act,
    EndAccess,
    EndLease,
    GiveBack,
    GrantMore,
    InvalidAct,
    MoveTier,
    ResetCounters,
    SetAccess,
)

#: The default end day of grants; Monday is 0.
FRIDAY = 4


class EndDay(NamedTuple):
    """A day until the end of which something can be granted."""

    value: str
    label: str
    is_chosen: bool


def days(today: date | None = None) -> list[EndDay]:
    """Return the days to choose from; the next Friday is preselected."""
    today = today or timezone.localdate(datetime.now(UTC))  # without USE_TZ, Django's default is naive
    friday = today + timedelta(days=(FRIDAY - today.weekday() - 1) % 7 + 1)
    month = today + timedelta(days=30)
    choices = {
        today: _("the end of today"),
        today + timedelta(days=1): _("the end of tomorrow"),
        today + timedelta(days=7): _("the end of %(day)s, in a week"),
        month: _("the end of %(day)s, in 30 days"),
    }
    choices[friday] = _("the end of %(day)s")
    return [
        EndDay(day.isoformat(), text % {"day": f"{date_format(day, 'l')}, {date_format(day)}"}, day == friday)
        for day, text in sorted(choices.items())
    ]


def act_from(sent: Any) -> Act:
    """Return the act of the pressed button. Raises InvalidAct for invalid data."""
    verb, _colon, name = str(sent.get("act", "")).partition(":")
    if verb == "reset":
        return ResetCounters([name] if name else ())
    if verb == "give":
        return GiveBack(name, _number(sent.get(f"units:{name}"), _("Enter how many units to give back.")))
    if verb == "end":
        began, _colon, name = name.partition(":")
        return EndLease(name, _number(began, _("There is no such lease any more.")))
    if verb == "more":
        return GrantMore(_multiplier(sent.get("multiplier")), _until(sent))
    if verb == "tier":
        return MoveTier(str(sent.get("tier", "")), _until(sent))
    if verb in ("allow", "deny"):
        return SetAccess(verb, _until(sent))
    if verb == "unset":
        return EndAccess()
    raise InvalidAct(_("Choose what to do."))


def _number(text: Any, problem: str) -> int:
    if not str(text or "").isascii() or not str(text or "").isdigit() or len(str(text)) > 18:
        raise InvalidAct(problem)
    return int(text)


def _multiplier(text: Any) -> Decimal:
    try:
        multiplier = Decimal(str(text).strip())
    except InvalidOperation:
        multiplier = Decimal(0)
    if not multiplier.is_finite() or multiplier <= 0:
        raise InvalidAct(_("Enter a number above 0: 2 = twice as much."))
    return multiplier


def _until(sent: Any) -> datetime:
    """Return the end of the selected day: the next midnight, in the operator's time zone."""
    try:
        day = date.fromisoformat(str(sent.get("date") or sent.get("until") or ""))
        end = datetime.combine(day + timedelta(days=1), time())
        return timezone.make_aware(end) if _uses_zones() else end
    except (ValueError, OverflowError):
        raise InvalidAct(_("Choose until when.")) from None


def _uses_zones() -> bool:
    return timezone.is_aware(timezone.now())
