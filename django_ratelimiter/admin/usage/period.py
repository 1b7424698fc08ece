"""The period of a report: the choices, and the form of a custom one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django import forms
from django.http import HttpRequest
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from ...usage.reports import totals
from ...usage.reports.coverage import Period
from ...usage.times import aware, stored

CUSTOM: Final = "custom"
DEFAULT: Final = "24h"
MAX_PERIOD: Final = timedelta(days=366)

LENGTHS: Final = {
    "1h": timedelta(hours=1),
    DEFAULT: timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "90d": timedelta(days=90),
    "1y": timedelta(days=365),
}

#: The periods to choose from: those of LENGTHS, those of the calendar, and any dates.
PERIODS: Final = {
    "1h": gettext_lazy("Last hour"),
    DEFAULT: gettext_lazy("Last 24 hours"),
    "7d": gettext_lazy("Last 7 days"),
    "30d": gettext_lazy("Last 30 days"),
    "90d": gettext_lazy("Last 90 days"),
    "1y": gettext_lazy("Last year"),
    "today": gettext_lazy("Today"),
    "this-week": gettext_lazy("This week"),
    "this-month": pgettext_lazy("period", "This month"),
    "last-month": gettext_lazy("Last month"),
    CUSTOM: gettext_lazy("Custom"),
}


def _within_calendar(moment: datetime) -> None:
    """Reject a year that some time zone does not support."""
    if not 1970 <= moment.year < 9999:
        raise forms.ValidationError(_("This year is out of range."))


class PeriodForm(forms.Form):
    """The period of a report. After validation, `cleaned_data["span"]` is its Period."""

    period = forms.ChoiceField(
        choices=[*PERIODS.items()],
        required=False,
        error_messages={"invalid_choice": gettext_lazy("There is no period “%(value)s”. Choose one of those above.")},
    )
    since = forms.DateTimeField(label=gettext_lazy("From"), required=False, validators=[_within_calendar])
    until = forms.DateTimeField(label=gettext_lazy("To"), required=False, validators=[_within_calendar])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("since", "until"):
            self.fields[name].widget = forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")

    @property
    def ends(self) -> list[forms.BoundField]:
        """The fields of a custom period."""
        return [self["since"], self["until"]]

    def clean(self) -> dict[str, Any]:
        """Compute the period; a custom one needs both ends, in order, and at most a year apart."""
        data = self.cleaned_data
        if data.get("period") == CUSTOM:
            if not self.errors:
                data["span"] = self._custom(data["since"], data["until"])
        elif "period" in data:
            name, now = data["period"] or DEFAULT, totals.last(timedelta())
            data["span"] = (
                totals.last(LENGTHS[name]) if name in LENGTHS else totals.named(name, timezone.localtime(now.end))
            )
        return data

    def _custom(self, since: datetime | None, until: datetime | None) -> Period | None:
        if since is None or until is None:
            for name, given in (("since", since), ("until", until)):
                if given is None:
                    self.add_error(name, _("A custom period needs both a start and an end."))
            return None
        span = Period(aware(since), aware(until))
        if span.start >= span.end:
            self.add_error("until", _("The end must be later than the start."))
        elif span.end - span.start > MAX_PERIOD:
            self.add_error("until", _("A report covers at most %d days.") % MAX_PERIOD.days)
        return span


def form_for(request: HttpRequest) -> PeriodForm:
    """Return the form of the request; a custom period without ends starts with those of the last day."""
    if request.GET.get("period") == CUSTOM and not request.GET.keys() & {"since", "until"}:
        day = totals.last(LENGTHS[DEFAULT])
        return PeriodForm(initial={"period": CUSTOM, "since": stored(day.start), "until": stored(day.end)})
    return PeriodForm(request.GET)


def picker_context(form: PeriodForm, request: HttpRequest) -> dict[str, Any]:
    """Return the periods to choose from as (URL, label, is_selected), and the parameters to keep."""
    chosen = form["period"].value() or DEFAULT
    parameters = {
        name: request.GET[name] for name in ("rule", "tier", "by", "caller", "identity") if name in request.GET
    }
    return {
        "lengths": [
            (f"?{urlencode({'period': name, **parameters})}", label, name == chosen) for name, label in PERIODS.items()
        ],
        "is_custom": chosen == CUSTOM,
        "parameters": parameters.items(),
    }
