"""The operator's choices for a forecast: the period, and the limit whose quota is the line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...forecast.samples.periods import (
    FIRST_DAY,
    LAST_DAY,
    ONE_DAY,
    WEEK,
    YESTERDAY,
    NamedPeriod,
    last_week,
    one_day,
    yesterday,
)

#: The prefix of the fields, which are in the rule's form.
PREFIX: Final = "forecast"


class ChoicesForm(forms.Form):
    """The choices, see `named_period`."""

    use_required_attribute = False

    period = forms.ChoiceField(
        label=gettext_lazy("Traffic of"),
        choices=[
            (YESTERDAY, gettext_lazy("yesterday")),
            (WEEK, gettext_lazy("the last 7 days")),
            (ONE_DAY, gettext_lazy("one day:")),
        ],
        required=False,
    )
    day = forms.DateField(
        label=gettext_lazy("Day"),
        required=False,
        widget=forms.DateInput({"type": "date"}, format="%Y-%m-%d"),
        validators=[MinValueValidator(FIRST_DAY), MaxValueValidator(LAST_DAY)],
    )
    limit = forms.ChoiceField(label=gettext_lazy("Limit"), required=False)
    quota = forms.IntegerField(required=False, min_value=1, max_value=2**48 - 1)
    quota_of = forms.CharField(required=False, max_length=100)

    def __init__(self, data: Any = None, *, limits: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(data, prefix=PREFIX, label_suffix="")
        self._default = YESTERDAY
        limit: Any = self.fields["limit"]
        limit.choices = limits

    def clean_day(self) -> date | None:
        """Return the day, if that is the selected period."""
        day: date | None = self.cleaned_data["day"]
        if self.cleaned_data.get("period") == ONE_DAY and day is None:
            raise forms.ValidationError(_("Choose the day."))
        return day

    def quota_for(self, name: str, quota: int) -> int:
        """Return the quota that the line was moved to; else, or if the form has another one since, that of the form."""
        data = self.cleaned_data if self.is_bound else {}
        moved = data.get("quota") if data.get("quota_of") in ("", f"{name}:{quota}") else None
        return moved or quota

    def choose_week(self) -> bool:
        """Choose the last seven days if nothing was chosen, and return whether that changes the period."""
        if self.data.get(f"{PREFIX}-period"):
            return False
        self._default = self.fields["period"].initial = WEEK
        if self.is_bound:  # then the page shows what was sent
            self.data = {**dict(self.data.items()), f"{PREFIX}-period": WEEK}
        return True

    @property
    def named_period(self) -> NamedPeriod:
        """Return the selected period."""
        data = self.cleaned_data if self.is_bound else {}
        chosen = data.get("period") or self._default
        return one_day(data["day"]) if chosen == ONE_DAY else last_week() if chosen == WEEK else yesterday()
