"""The forecast above the form of a rule: the form's unsaved values, on recorded traffic. Nothing is saved.

The button posts the form. The page shows the same form again, as after an error, with the forecast above it. So
a number that is copied from the forecast is in the form that is saved next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from django import forms
from django.contrib.admin.options import csrf_protect_m
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...forecast.samples.source import recorded_by
from ...models import Rule, RuleLimit
from ...rules.records import RuleRecord
from ...rules.ruleset import rule_from
from ...rules.stored.compiler import rule_data
from ..versioned import VersionedAdmin, is_outdated
from ..viewer import VIEW_USAGE
from .choices import PREFIX, ChoicesForm
from .figures import panel_context
from .line import LimitRow, limit_rows

#: The names of the two buttons; the first one, in a URL, shows the forecast of the saved rule.
ASK: Final = "_forecast"
TAKE: Final = "_forecast_take"


class UnsavedForm(forms.ModelForm):
    """A form that can be sent without saving. is_only_read: then it is never valid, even without errors."""

    is_only_read = False

    def is_valid(self) -> bool:
        return super().is_valid() and not self.is_only_read


class ForecastPanel(VersionedAdmin):
    """An admin of rules whose form has the button. Its form must be an UnsavedForm."""

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.is_only_read = _is_asked(request)
        return form

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
        if TAKE in request.POST:
            request.POST = _with_number(request.POST)
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
        if request.user.has_perm(VIEW_USAGE):
            context["forecast_button"] = ASK
            if _is_asked(request) or (rule is not None and ASK in request.GET):
                context["forecast"] = self._panel(request, context, None if rule is None else unquote(str(rule.pk)))
        return super().render_change_form(request, context, *args, **kwargs)

    def _panel(self, request: HttpRequest, context: dict[str, Any], pk: str | None) -> dict[str, Any]:
        rows = limit_rows(context["inline_admin_formsets"])
        asked = request.POST if _is_asked(request) else request.GET if f"{PREFIX}-period" in request.GET else None
        choices = ChoicesForm(asked, limits=[row.choice for row in rows])
        may_save = pk is None or self.has_change_permission(request, context["original"])
        own: dict[str, Any] = {
            "choices": choices,
            "ask": ASK,
            "take": TAKE if may_save else "",
            "is_outdated": getattr(request, "ratelimiter_outdated", False),
        }
        if context["errors"]:
            return own | {"problem": _("Correct the errors below: a forecast needs values that could be saved.")}
        if choices.is_bound and not choices.is_valid():
            return own
        return own | self._forecast(request, context, choices, rows, pk)

    def _forecast(
        self, request: HttpRequest, context: dict[str, Any], choices: ChoicesForm, rows: list[LimitRow], pk: str | None
    ) -> dict[str, Any]:
        """Return the forecast, or the reason why there is none."""
        form, limits = context["adminform"].form.instance, [row.limit for row in rows]
        saved = Rule.objects.get(pk=pk) if pk else None
        if saved and not any(issubclass(each.formset.model, RuleLimit) for each in context["inline_admin_formsets"]):
            limits = list(_limits_of(saved))
        after, reason = _record(form, limits, saved.slug if saved else "")
        if after is None:
            return {"problem": reason}
        if saved is None:  # the requests of a new rule are those that another one has recorded
            saved = recorded_by(form, Rule.objects.exclude(mode=Rule.Mode.OFF).order_by("pk"))
        if saved is None:
            return {
                "problem": _(
                    "Nothing is known about these requests: only rules record requests, and no saved rule "
                    "applies to the same views and methods and counts by the same value. Save this rule in "
                    "shadow, which rejects nothing, and look again tomorrow."
                )
            }
        after = replace(after, slug=saved.slug)
        before = None if pk is None else _record(saved, list(_limits_of(saved)))[0]
        return panel_context(request, before, after, choices, rows) | {"recorded_by": "" if pk else str(saved)}


def _is_asked(request: HttpRequest) -> bool:
    return request.method == "POST" and any(name in request.POST for name in (ASK, TAKE))


def _with_number(typed: Any) -> Any:
    """Return the form with the line's number as its limit's quota; unchanged if another limit was selected since."""
    number, limit = typed.get("forecast-quota", ""), typed.get("forecast-limit", "")
    name = f"{limit}-quota"
    if not number.isdecimal() or name not in typed or typed.get("forecast-quota_of", limit).partition(":")[0] != limit:
        return typed
    changed = typed.copy()
    changed[name] = number
    return changed


def _limits_of(rule: Rule) -> Any:
    return RuleLimit.objects.filter(rule=rule).select_related("tier", "rule")


def _record(rule: Rule, limits: list[RuleLimit], slug: str = "") -> tuple[RuleRecord | None, str]:
    """Return the enforceable rule, or `None` and the reason why not. slug: that its usage is counted under."""
    try:
        return rule_from(rule_data(rule, limits) | ({"slug": slug} if slug else {})), ""
    except (ValueError, TypeError, KeyError) as error:
        return None, str(error)
