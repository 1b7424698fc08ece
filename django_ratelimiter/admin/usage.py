"""The usage report: what takes the place of a list of usage buckets in the admin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Rule, Tier, UsageBucket
from ..usage import chart, reports
from ..usage.reports import Figures, Period
from ..usage.times import aware, stored

#: What staff need to see a report.
PERMISSION: Final = "django_ratelimiter.view_usage_report"

CUSTOM: Final = "custom"
DEFAULT: Final = "24h"
LONGEST: Final = timedelta(days=366)

LENGTHS: Final = {
    "1h": (timedelta(hours=1), gettext_lazy("Last hour")),
    DEFAULT: (timedelta(hours=24), gettext_lazy("Last 24 hours")),
    "7d": (timedelta(days=7), gettext_lazy("Last 7 days")),
    "30d": (timedelta(days=30), gettext_lazy("Last 30 days")),
}


class PeriodForm(forms.Form):
    """The period of a report. Once valid, `cleaned_data["span"]` is its Period."""

    period = forms.ChoiceField(
        choices=[*((name, label) for name, (_length, label) in LENGTHS.items()), (CUSTOM, gettext_lazy("Custom"))],
        required=False,
        error_messages={"invalid_choice": gettext_lazy("There is no period “%(value)s”. Choose one of those above.")},
    )
    since = forms.DateTimeField(label=gettext_lazy("From"), required=False)
    until = forms.DateTimeField(label=gettext_lazy("To"), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("since", "until"):
            self.fields[name].widget = forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")

    @property
    def ends(self) -> list[forms.BoundField]:
        """The fields of a custom period."""
        return [self["since"], self["until"]]

    def clean(self) -> dict[str, Any]:
        """Work out the period; the ends of a custom one are both needed, in order, and at most a year apart."""
        data = self.cleaned_data
        if data.get("period") == CUSTOM:
            if not self.errors:
                data["span"] = self._custom(data["since"], data["until"])
        elif "period" in data:
            length, _label = LENGTHS[data["period"] or DEFAULT]
            data["span"] = reports.last(length)
        return data

    def clean_since(self) -> datetime | None:
        """The start, in a year that every time zone can reckon with."""
        return _within_calendar(self.cleaned_data["since"])

    def clean_until(self) -> datetime | None:
        """The end, likewise."""
        return _within_calendar(self.cleaned_data["until"])

    def _custom(self, since: datetime | None, until: datetime | None) -> Period | None:
        if since is None or until is None:
            for name, given in (("since", since), ("until", until)):
                if given is None:
                    self.add_error(name, _("A custom period needs both a start and an end."))
            return None
        span = Period(aware(since), aware(until))
        if span.start >= span.end:
            self.add_error("until", _("The end must be later than the start."))
        elif span.end - span.start > LONGEST:
            self.add_error("until", _("A report covers at most %d days.") % LONGEST.days)
        return span


def _within_calendar(moment: datetime | None) -> datetime | None:
    if moment is not None and not 1970 <= moment.year < 9999:
        raise forms.ValidationError(_("This year is out of range."))
    return moment


class Told(NamedTuple):
    """Figures as the page shows them. rate_width: the refusal rate as the width of its bar."""

    requests: str
    allowed: str
    denied: str
    shadow_denied: str
    soft_exceeded: str
    rate: str
    rate_width: str


class Row(NamedTuple):
    """A line of the table of totals. rule_url: "" = there is no page to link to."""

    rule: str
    rule_url: str
    tier: str
    told: Told


@admin.register(UsageBucket)
class UsageBucketAdmin(admin.ModelAdmin):
    """Shows the report and nothing else: counts are facts, so nobody adds, changes or deletes them here."""

    def has_view_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return request.user.has_perm(PERMISSION)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="django_ratelimiter_usagebucket_changelist")]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """The report. 403 without the permission to view usage reports."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        form = _form(request)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Usage"),
            "opts": self.opts,
            "form": form,
            **_pickers(form),
            **(self._report(request, form.cleaned_data["span"]) if form.is_valid() else {}),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/django_ratelimiter/usage.html", context)

    def _report(self, request: HttpRequest, span: Period) -> dict[str, Any]:
        totals, points, fresh = reports.totals(span), reports.series(span), reports.freshness()
        together = sum((total.figures for total in totals), Figures())
        return {
            "span": span,
            "step": span.step,
            "rows": self._rows(request, totals),
            "together": _tell(together),
            "has_shadow": bool(together.shadow_denied),
            "has_soft": bool(together.soft_exceeded),
            "chart": chart.draw(points),
            "points": [(chart.span(point), _tell(point.figures)) for point in points],
            "fresh": fresh,
        }

    def _rows(self, request: HttpRequest, totals: Sequence[reports.Total]) -> list[Row]:
        tiers = dict(Tier.objects.values_list("slug", "name"))
        rules = {slug: (name, pk) for slug, name, pk in Rule.objects.values_list("slug", "name", "pk")}
        site = self.admin_site
        linked = site.is_registered(Rule) and site.get_model_admin(Rule).has_view_permission(request)
        rows = []
        for rule, tier, figures in totals:
            name, pk = rules.get(rule, (rule, None))
            url = self._rule_url(pk) if linked and pk is not None else ""
            told_tier = tiers.get(tier, tier) if tier else _("no tier")
            rows.append(Row(name or _("unknown rule"), url, told_tier, _tell(figures)))
        return rows

    def _rule_url(self, pk: int) -> str:
        return reverse("admin:django_ratelimiter_rule_change", args=[pk], current_app=self.admin_site.name)


def _form(request: HttpRequest) -> PeriodForm:
    """What was asked for; a custom period without ends is yet to be filled in, so it begins with those of a day."""
    if request.GET.get("period") == CUSTOM and not request.GET.keys() & {"since", "until"}:
        day = reports.last(LENGTHS[DEFAULT][0])
        return PeriodForm(initial={"period": CUSTOM, "since": stored(day.start), "until": stored(day.end)})
    return PeriodForm(request.GET)


def _pickers(form: PeriodForm) -> dict[str, Any]:
    """The periods to choose from, and the one that is chosen."""
    chosen = form["period"].value() or DEFAULT
    labels = [(name, label) for name, (_length, label) in LENGTHS.items()]
    return {
        "lengths": [(name, label, name == chosen) for name, label in (*labels, (CUSTOM, _("Custom")))],
        "is_custom": chosen == CUSTOM,
    }


def _tell(figures: Figures) -> Told:
    rate = 100 * (figures.refusal_rate or 0)
    return Told(
        chart.number(figures.requests),
        chart.number(figures.allowed),
        chart.number(figures.denied),
        chart.number(figures.shadow_denied),
        chart.number(figures.soft_exceeded),
        _("%s %%") % number_format(round(rate, 1), decimal_pos=1) if figures.requests else "\u2013",
        f"{rate:.2f}%",
    )
