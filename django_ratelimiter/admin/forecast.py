"""The forecast above the form of a rule: the form's unsaved values, on recorded traffic. Nothing is saved.

The button posts the form. The page shows the same form again, as after an error, with the forecast above it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from django import forms
from django.contrib.admin.options import csrf_protect_m
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..forecast.answer import CALLERS, REQUESTS, percent
from ..forecast.samples import WEEK, YESTERDAY, Samples, read_period, recent_periods
from ..models import Rule, RuleLimit, Tier
from ..rules.formatting import limits_in_short, limits_in_words
from ..rules.records import RuleRecord
from ..rules.ruleset import rule_from
from ..rules.stored.compiler import rule_data
from ..usage.reports.coverage import Period
from .formatting import names_in_words
from .versioned import VersionedAdmin, is_outdated
from .viewer import VIEW_USAGE

#: The name of the button; in a URL, it shows the forecast of the saved rule.
ASK: Final = "_forecast"

#: The name of the field with the period.
PERIOD: Final = "forecast-period"


class UnsavedForm(forms.ModelForm):
    """A form that is never valid if a forecast is asked for, even without errors. request: that of the page."""

    request: HttpRequest

    def is_valid(self) -> bool:
        return super().is_valid() and not _is_asked(self.request)


class ForecastPanel(VersionedAdmin):
    """An admin of rules whose form has the button. Its form must be an UnsavedForm."""

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the form again if a forecast is requested, without the locks and the version of a save."""
        if not _is_asked(request):
            return super().changeform_view(request, object_id, form_url, extra_context)
        if not request.user.has_perm(VIEW_USAGE):
            raise PermissionDenied
        return self._looked_at(request, object_id, form_url, extra_context)

    @csrf_protect_m  # type: ignore[untyped-decorator]
    def _looked_at(self, request: HttpRequest, object_id: str | None, form_url: str, extra_context: Any) -> Any:
        """Return the page of a form that was not sent to be saved, without Django's transaction."""
        row = None if object_id is None else self.get_object(request, unquote(object_id))
        if row is not None:
            request.ratelimiter_outdated = is_outdated(request, row)  # type: ignore[attr-defined]
        return self._changeform_view(request, object_id, form_url, extra_context)  # type: ignore[attr-defined]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        rule = kwargs.get("obj")
        if rule is not None and request.user.has_perm(VIEW_USAGE):
            context["forecast_button"] = ASK
            if _is_asked(request) or ASK in request.GET:
                context["forecast"] = self._panel(request, context, Rule.objects.get(pk=rule.pk))
        return super().render_change_form(request, context, *args, **kwargs)

    def _panel(self, request: HttpRequest, context: dict[str, Any], saved: Rule) -> dict[str, Any]:
        given = (request.POST if _is_asked(request) else request.GET).get(PERIOD, "")
        own = {
            "ask": ASK,
            "period_field": PERIOD,
            "periods": recent_periods(),
            "chosen": given or YESTERDAY,
            "may_ask": self.has_change_permission(request, saved),
            "is_outdated": getattr(request, "ratelimiter_outdated", False),
        }
        if context["errors"]:
            return own | {"problem": _("Correct the errors below: a forecast needs values that could be saved.")}
        saved_limits = [*RuleLimit.objects.filter(rule=saved).select_related("tier", "rule")]
        formsets = [each.formset for each in context["inline_admin_formsets"] if each.formset.model is RuleLimit]
        limits = [*_limits_in(formsets)] if formsets else saved_limits
        try:
            named = read_period(given or YESTERDAY)
            after = _record(context["adminform"].form.instance, limits, saved.slug)
        except (ValueError, TypeError, KeyError) as error:
            return own | {"problem": str(error)}
        before = None
        with suppress(ValueError, TypeError, KeyError):  # it is not in use
            before = _record(saved, saved_limits, saved.slug)
        found = _context(request, before, after, *named)
        if not given and not found["found"].sampled:
            found = _context(request, before, after, *read_period(WEEK)) | {"chosen": WEEK}
        return own | found


def _is_asked(request: HttpRequest) -> bool:
    return request.method == "POST" and ASK in request.POST


def _limits_in(formsets: Iterable[Any]) -> Iterable[RuleLimit]:
    """Yield the limits of the form as entered, without those that are to be deleted."""
    for formset in formsets:
        for form in (*formset.initial_forms, *(each for each in formset.extra_forms if each.has_changed())):
            if not getattr(form, "cleaned_data", {}).get("DELETE"):
                yield form.instance


def _record(rule: Rule, limits: list[RuleLimit], slug: str) -> RuleRecord:
    """Return a rule. slug: that its usage is counted under. Raises ValueError, TypeError, KeyError if it is invalid."""
    return rule_from(rule_data(rule, limits) | {"slug": slug})


def _context(
    request: HttpRequest, before: RuleRecord | None, after: RuleRecord, name: str, period: Period
) -> dict[str, Any]:
    """Return the context of the panel. before: the saved rule, `None` = it is not in use; after: the form's."""
    samples, tiers = Samples(before, after, period), dict(Tier.objects.values_list("slug", "name"))
    found = samples.forecast(is_change=before is not None)
    known = names_in_words(request.user, samples.aliases([each.caller for each in found.tally.top]))
    top = found.tally.top[:5]
    quotas = samples.with_other_quotas() if found.shows_figures and not after.is_off else ()
    return {
        "period": name,
        "dates": samples.period,
        "answer": found.answer(),
        "found": found,
        "before_in_words": limits_in_words(before) if before else "",
        "is_off": after.is_off,
        "share_of_callers": percent(found.share(CALLERS)),
        "share_of_requests": percent(found.share(REQUESTS)),
        "top": [(known.get(each.caller, ""), tiers.get(each.tier, each.tier) or _("no tier"), each) for each in top],
        # Limits with other quotas, about whom each would reject, and whether they are those of the form.
        "quotas": [
            (limits_in_short(each), rejected * found.one_in, each.limits == after.limits) for each, rejected in quotas
        ],
        "most": found.requests if found.is_shared else found.callers,
    }
