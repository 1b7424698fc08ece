"""The usage reports, which replace the list of usage buckets in the admin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any, Final

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.decorators import method_decorator
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters

from ...models import Rule, UsageBucket
from ...rules import inline
from ...usage.reports.report import Report
from ..names import names_in_words
from ..rejections import RejectionsPage
from ..viewer import VIEW_USAGE, Viewer
from . import export
from . import search as usage_search
from .page import page_context, report_url, rule_name, top_context
from .period import PeriodForm, form_for, picker_context

_FORMATS: Final[Mapping[str, Callable[[Report, str], HttpResponse]]] = {
    "csv": export.as_csv,
    "json": export.as_json,
}


@admin.register(UsageBucket)
class UsageBucketAdmin(RejectionsPage):
    """Shows only reports: counts cannot be added, changed or deleted here."""

    def has_view_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return request.user.has_perm(VIEW_USAGE)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        views: list[tuple[str, str, Any]] = [
            ("", "changelist", self.changelist_view),
            ("rule/", "rule", self.rule_view),
            ("caller/", "caller", self.caller_view),
            ("top-callers/", "top_callers", self.top_callers_view),
        ]
        for table, kind in product(export.TABLES, _FORMATS):
            views.append((f"{table}.{kind}", f"{table}_{kind}", partial(self.data_view, table=table, kind=kind)))
        pages = [
            self.page_path(route, view, f"usagebucket_{name}", self.has_view_permission) for route, name, view in views
        ]
        return [*pages, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Show the report on all rules."""
        return self._page(request, None, extra_context)

    def rule_view(self, request: HttpRequest) -> TemplateResponse:
        """Show the report on the rule in the query; 404 if there is none."""
        rule = request.GET.get("rule")
        if not rule:
            raise Http404
        return self._page(request, rule)

    @method_decorator(sensitive_post_parameters())
    def caller_view(self, request: HttpRequest) -> HttpResponse:
        """Find a caller of a rule: redirect to the report with its digest, or show the errors."""
        rule = request.GET.get("rule")
        if request.method != "POST":
            return HttpResponseRedirect(report_url(request, "rule"))
        search = usage_search.form_for(rule, request.POST)
        if search is None:
            raise Http404
        if not search.is_valid():
            return self._page(request, rule, {"search": search})
        return HttpResponseRedirect(f"{report_url(request, 'rule', caller=search.digest)}#ratelimiter-caller")

    def top_callers_view(self, request: HttpRequest) -> TemplateResponse:
        """Show the top callers over all rules; of this month, unless a period is given."""
        if "period" not in request.GET:
            request.GET = QueryDict(urlencode({**request.GET.dict(), "period": "this-month"}))
        form = form_for(request)
        context = {
            "form": form,
            **picker_context(form, request),
            **(top_context(Viewer(request), _report(request, form, None)) if form.is_valid() else {}),
        }
        return self.page(request, "usage_top", _("Top callers"), context)

    def data_view(self, request: HttpRequest, table: str, kind: str) -> HttpResponse:
        """Return one table of a report as a file. 400 for an invalid period."""
        form = PeriodForm(request.GET)
        if not form.is_valid():
            return HttpResponse(form.errors.as_text(), status=400, content_type="text/plain; charset=utf-8")
        report = _report(request, form, request.GET.get("rule") or None)
        if table == "top":
            report.names = names_in_words(request.user, [each.partition for each in report.top_partitions])
        return _FORMATS[kind](report, table)

    def _page(self, request: HttpRequest, rule: str | None, extra: dict[str, Any] | None = None) -> TemplateResponse:
        form, viewer = form_for(request), Viewer(request)
        context = {
            "form": form,
            "rule": rule,
            "search": usage_search.form_for(rule),
            "may_see_callers": viewer.sees_callers,
            "recent_url": viewer.url("rejections", **({"rule": rule} if rule else {})),
            **picker_context(form, request),
            **(page_context(viewer, _report(request, form, rule)) if form.is_valid() else {}),
            **(extra or {}),
        }
        title = _("Usage reports") if rule is None else _("Usage of “%s”") % rule_name(viewer, rule)
        return self.page(request, "usage", title, context)


def _report(request: HttpRequest, form: PeriodForm, rule: str | None) -> Report:
    """Return the report of the request; 404 for an unknown rule, and for a slug that some databases reject."""
    tier, caller, identity = (request.GET.get(name) for name in ("tier", "caller", "identity"))
    if "\0" in f"{rule}{tier}{caller}{identity}" or (rule is not None and not _is_known(rule)):
        raise Http404
    by_rejected = request.GET.get("by") == "rejected"
    of = identity if identity and rule is None else None
    return Report(form.cleaned_data["span"], rule, tier, by_rejected=by_rejected, identity=of)


def _is_known(slug: str) -> bool:
    """Return whether there is such a rule, in the database or in code, or usage of a deleted one."""
    return (
        Rule.objects.filter(slug=slug).exists()
        or any(rule.slug == slug for rule in inline.registered())
        or UsageBucket.objects.filter(rule_slug=slug).exists()
    )
