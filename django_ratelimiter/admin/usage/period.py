"""The period of a report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.http import Http404, HttpRequest
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from ...usage.reports import totals
from ...usage.reports.coverage import Period

DEFAULT: Final = "24h"

#: The last of these lengths, and those of the calendar.
LENGTHS: Final = {
    "1h": timedelta(hours=1),
    DEFAULT: timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
PERIODS: Final = {
    "1h": gettext_lazy("Last hour"),
    DEFAULT: gettext_lazy("Last 24 hours"),
    "7d": gettext_lazy("Last 7 days"),
    "30d": gettext_lazy("Last 30 days"),
    "this-month": pgettext_lazy("period", "This month"),
    "last-month": gettext_lazy("Last month"),
}

#: The parameters that links to another period keep.
KEPT: Final = ("rule", "tier", "by", "identity")


def period_of(request: HttpRequest) -> Period:
    """Return the request's period, up to now. Raises Http404 if there is none with this name."""
    name = _name_in(request)
    if name in LENGTHS:
        return totals.last(LENGTHS[name])
    if name not in PERIODS:
        text = _("There is no period “%(name)s”. Choose one of these: %(names)s.")
        raise Http404(text % {"name": name, "names": ", ".join(PERIODS)})
    return totals.month(timezone.localtime(totals.last(timedelta()).end), is_last=name == "last-month")


def choices(request: HttpRequest) -> Iterator[tuple[str, Any, bool]]:
    """Yield the periods to choose from, as URL, label, and whether it is chosen."""
    kept = {name: request.GET[name] for name in KEPT if name in request.GET}
    for name, label in PERIODS.items():
        yield f"?{urlencode({'period': name, **kept})}", label, name == _name_in(request)


def _name_in(request: HttpRequest) -> str:
    return request.GET.get("period") or DEFAULT
