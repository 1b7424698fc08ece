"""From the data of the form on a caller's page to the act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ...inspection.acts import ACTS, Act, EndLease, InvalidAct
from ...usage.times import end_from

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
    kind, _colon, about = str(sent.get("act", "")).partition(":")
    if kind not in ACTS:
        raise InvalidAct(_("Choose what to do."))
    began, _colon, counter = about.partition(":") if kind == EndLease.kind else ("", "", about)
    read: dict[str, Callable[[], Any]] = {
        "counters": lambda: [counter] if counter else [],
        "counter": lambda: counter,
        "units": lambda: _number(sent.get(f"units:{counter}"), _("Enter how many units to give back.")),
        "began_us": lambda: _number(began, _("There is no such lease any more.")),
        "multiplier": lambda: _multiplier(sent.get("multiplier")),
        "tier": lambda: str(sent.get("tier", "")),
        "until": lambda: _until(sent),
    }
    return ACTS[kind](**{each.name: read[each.name]() for each in fields(ACTS[kind])})


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
    """Return the end of the selected day, in the operator's time zone."""
    try:
        return end_from(str(sent.get("date") or sent.get("until") or ""))
    except (ValueError, OverflowError):
        raise InvalidAct(_("Choose until when.")) from None
