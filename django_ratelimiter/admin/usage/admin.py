"""The usage reports, which replace the list of usage buckets in the admin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters

from ...models import Rule, UsageBucket
from ...rules import inline
from ..identities import CALLER_PERMISSIONS
from ..rejections import RejectionsPage, rejections_url
from . import export
from . import search as usage_search
from .page import Names, page_context, report_url
from .period import PeriodForm, form_for, picker_context
from .report import Report

#: The permission to see a report.
PERMISSION: Final = "django_ratelimiter.view_usage_report"

_FORMATS: Final[Mapping[str, Callable[[Report, str], HttpResponse]]] = {
    "csv": export.as_csv,
    "json": export.as_json,
}


@admin.register(UsageBucket)
class UsageBucketAdmin(RejectionsPage):
    """Shows only reports: counts cannot be added, changed or deleted here."""

    def has_view_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return request.user.has_perm(PERMISSION)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        name, view = "django_ratelimiter_usagebucket", self.admin_site.admin_view
        data = [
            path(f"{table}.{kind}", view(self.data_view), {"table": table, "kind": kind}, f"{name}_{table}_{kind}")
            for table in export.TABLES
            for kind in _FORMATS
        ]
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("rule/", view(self.rule_view), name=f"{name}_rule"),
            path("caller/", view(self.caller_view), name=f"{name}_caller"),
            *self.rejections_urls(),
            *data,
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Show the report on all rules. 403 without the permission to view usage reports."""
        return self._page(request, None, extra_context)

    def rule_view(self, request: HttpRequest) -> TemplateResponse:
        """Show the report on the rule in the query; 404 if there is none."""
        self._admit(request)
        rule = request.GET.get("rule")
        if not rule:
            raise Http404
        return self._page(request, rule)

    @method_decorator(sensitive_post_parameters())
    def caller_view(self, request: HttpRequest) -> HttpResponse:
        """Find a caller of a rule: redirect to the report with its digest, or show the errors."""
        self._admit(request)
        request.current_app = self.admin_site.name
        rule = request.GET.get("rule")
        if request.method != "POST":
            return HttpResponseRedirect(report_url(request, "rule"))
        search = usage_search.form_for(rule, request.POST)
        if search is None:
            raise Http404
        if not search.is_valid():
            return self._page(request, rule, {"search": search})
        return HttpResponseRedirect(f"{report_url(request, 'rule', caller=search.digest)}#ratelimiter-caller")

    def data_view(self, request: HttpRequest, table: str, kind: str) -> HttpResponse:
        """Return one table of a report as a file. 400 for an invalid period."""
        self._admit(request)
        form = PeriodForm(request.GET)
        if not form.is_valid():
            return HttpResponse(form.errors.as_text(), status=400, content_type="text/plain; charset=utf-8")
        return _FORMATS[kind](_report(request, form, request.GET.get("rule") or None), table)

    def _admit(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _page(self, request: HttpRequest, rule: str | None, extra: dict[str, Any] | None = None) -> TemplateResponse:
        self._admit(request)
        request.current_app = self.admin_site.name
        form, names = form_for(request), Names(self._change_url(request))
        context = {
            **self.admin_site.each_context(request),
            "title": _("Usage reports") if rule is None else _("Usage of “%s”") % names.rule(rule),
            "opts": self.opts,
            "form": form,
            "rule": rule,
            "search": usage_search.form_for(rule),
            "may_see_callers": any(request.user.has_perm(each) for each in CALLER_PERMISSIONS),
            "recent_url": rejections_url(request, rule),
            **picker_context(form, request),
            **(page_context(request, _report(request, form, rule), names) if form.is_valid() else {}),
            **(extra or {}),
        }
        return TemplateResponse(request, "admin/django_ratelimiter/usage.html", context)

    def _change_url(self, request: HttpRequest) -> Callable[[int], str] | None:
        """Return a function for the URL of a rule's form; `None` without the permission."""
        site = self.admin_site
        if not site.is_registered(Rule) or not site.get_model_admin(Rule).has_view_permission(request):
            return None
        return lambda pk: reverse("admin:django_ratelimiter_rule_change", args=[pk], current_app=site.name)


def _report(request: HttpRequest, form: PeriodForm, rule: str | None) -> Report:
    """Return the report of the request; 404 for an unknown rule, and for a slug that some databases reject."""
    tier, caller = request.GET.get("tier"), request.GET.get("caller", "")
    if "\0" in f"{rule}{tier}{caller}" or (rule is not None and not _is_known(rule)):
        raise Http404
    return Report(form.cleaned_data["span"], rule, tier, request.GET.get("by", ""), caller)


def _is_known(slug: str) -> bool:
    """Return whether there is such a rule, in the database or in code, or usage of a deleted one."""
    return (
        Rule.objects.filter(slug=slug).exists()
        or any(rule.slug == slug for rule in inline.registered())
        or UsageBucket.objects.filter(rule_slug=slug).exists()
    )
