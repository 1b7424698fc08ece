"""The usage reports, which replace the list of usage buckets in the admin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ...models import Rule, UsageBucket
from ...rules import inline
from ...usage.reports.report import Report
from ..identities import names_in_words
from ..pages import Page, PagesAdmin, show
from ..rejections import rejections_view
from ..viewer import VIEW_USAGE, Viewer
from . import export
from .page import choices, page_context, period_of, rule_name, top_context

_FORMATS: Final[Mapping[str, Callable[[Report, str], HttpResponse]]] = {
    "csv": export.as_csv,
    "json": export.as_json,
}
_MAY: Final = VIEW_USAGE.partition(".")[2]


def usage_view(page_of: Any, request: HttpRequest) -> TemplateResponse:
    """Show the report on all rules."""
    return _report_page(page_of, request, "usage", None)


def usage_rule_view(page_of: Any, request: HttpRequest) -> TemplateResponse:
    """Show the report on the rule in the query; 404 if there is none."""
    rule = request.GET.get("rule")
    if not rule:
        raise Http404
    return _report_page(page_of, request, "usage_rule", rule)


def usage_top_callers_view(page_of: Any, request: HttpRequest) -> TemplateResponse:
    """Show the top callers over all rules; of this month, unless a period is given."""
    if "period" not in request.GET:
        request.GET = QueryDict(urlencode({**request.GET.dict(), "period": "this-month"}))
    context = {"periods": choices(request), **top_context(Viewer(request), _report(request, None))}
    return show(page_of, request, "usage_top_callers", _("Top callers"), context)


def usage_data_view(_page_of: Any, request: HttpRequest, *, table: str, kind: str) -> HttpResponse:
    """Return one table of a report as a file; 404 if there is no such table or format."""
    if table not in export.TABLES or kind not in _FORMATS:
        raise Http404
    report = _report(request, request.GET.get("rule") or None)
    if table == "top":
        report.names = names_in_words(request.user, [each.partition for each in report.top_partitions])
    return _FORMATS[kind](report, table)


def _report_page(page_of: Any, request: HttpRequest, name: str, rule: str | None) -> TemplateResponse:
    viewer = Viewer(request)
    context = {
        "rule": rule,
        "recent_url": viewer.url("rejections", **({"rule": rule} if rule else {})),
        "periods": choices(request),
        **page_context(viewer, _report(request, rule)),
    }
    title = _("Usage reports") if rule is None else _("Usage of “%s”") % rule_name(viewer, rule)
    return show(page_of, request, name, title, context)


def _report(request: HttpRequest, rule: str | None) -> Report:
    """Return the report of the request; 404 for an unknown rule, and for a slug that some databases reject."""
    tier, identity = (request.GET.get(name) for name in ("tier", "identity"))
    if "\0" in f"{rule}{tier}{identity}" or (rule is not None and not _is_known(rule)):
        raise Http404
    by_rejected = request.GET.get("by") == "rejected"
    of = identity if identity and rule is None else None
    return Report(period_of(request), rule, tier, by_rejected=by_rejected, identity=of)


def _is_known(slug: str) -> bool:
    """Return whether there is such a rule, in the database or in code, or usage of a deleted one."""
    return (
        Rule.objects.filter(slug=slug).exists()
        or any(rule.slug == slug for rule in inline.registered())
        or UsageBucket.objects.filter(rule_slug=slug).exists()
    )


@admin.register(UsageBucket)
class UsageBucketAdmin(PagesAdmin):
    """Shows only reports: counts cannot be added, changed or deleted here."""

    has_forms = False
    pages = (
        Page("rejections/", rejections_view, _MAY),
        Page("", usage_view, _MAY, "usagebucket_changelist"),
        Page("rule/", usage_rule_view, _MAY),
        Page("top-callers/", usage_top_callers_view, _MAY),
        Page("<slug:table>.<slug:kind>", usage_data_view, _MAY),
    )

    def has_view_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return request.user.has_perm(VIEW_USAGE)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False
