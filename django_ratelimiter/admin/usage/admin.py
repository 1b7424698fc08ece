"""The usage reports, which replace the list of usage buckets in the admin: periods, figures as text, and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote_plus

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from ...models import CallerUsage, Rule, UsageBucket
from ...rules import inline
from ...rules.formatting import ago, units
from ...usage.reports import chart, totals
from ...usage.reports.coverage import Period
from ...usage.reports.report import ORDERS, Report, TopPartitionRow, by_caller, days_of, exact_usage, sum_of_exact
from ...usage.reports.totals import Figures, freshness
from ...values.digests import alias_of, whole
from ..formatting import label_of, names_in_words
from ..pages import Page, PagesAdmin, show
from ..rejections import rejections_view
from ..viewer import VIEW_USAGE, Viewer
from . import export

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
    """Show the top callers over all rules, by the identity in the query or the first; by default of this month."""
    if "period" not in request.GET:
        request.GET = QueryDict(urlencode({**request.GET.dict(), "period": "this-month"}))
    viewer, report = Viewer(request), _report(request, None)
    found = sorted(report.identities, key=lambda each: (_FIRST.index(each) if each in _FIRST else len(_FIRST), each))
    report.identity = request.GET.get("identity") or next(iter(found), "user")
    labels = {name: label_of(name) for name in dict.fromkeys([*found, report.identity])}
    context = {
        "periods": choices(request),
        **period_context(viewer, report.period, report.rule),
        **_top(viewer, report),
        "identity": labels[report.identity],
        "may_stand_in": report.identity != "ip",
        "identities": [
            (report_url(request, identity=name), capfirst(label), name == report.identity)
            for name, label in labels.items()
        ],
    }
    return show(page_of, request, "usage_top_callers", _("Top callers"), context)


def usage_data_view(_page_of: Any, request: HttpRequest, *, table: str) -> HttpResponse:
    """Return one table of a report as a file; 404 if there is no such table."""
    if table not in export.TABLES:
        raise Http404
    if table == "callers":
        return export.as_csv(_rows_of_callers(request), table)
    report = _report(request, request.GET.get("rule") or None)
    if table == "top":
        report.names = names_in_words(request.user, [each.partition for each in report.top_partitions])
    return export.as_csv(report, table)


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


DEFAULT: Final = "24h"

#: The periods to choose from, with their lengths; `None` = a month of the calendar.
PERIODS: Final = {
    "1h": (gettext_lazy("Last hour"), timedelta(hours=1)),
    DEFAULT: (gettext_lazy("Last 24 hours"), timedelta(hours=24)),
    "7d": (gettext_lazy("Last 7 days"), timedelta(days=7)),
    "30d": (gettext_lazy("Last 30 days"), timedelta(days=30)),
    "this-month": (pgettext_lazy("period", "This month"), None),
    "last-month": (gettext_lazy("Last month"), None),
}


def period_of(request: HttpRequest) -> Period:
    """Return the request's period, up to now. Raises Http404 if there is none with this name."""
    name = _name_in(request)
    if name not in PERIODS:
        text = _("There is no period “%(name)s”. Choose one of these: %(names)s.")
        raise Http404(text % {"name": name, "names": ", ".join(PERIODS)})
    if length := PERIODS[name][1]:
        return totals.last(length)
    now = timezone.localtime(totals.last(timedelta()).end)
    return totals.month(now, is_last=name == "last-month", first=day_in(request))


def day_in(request: HttpRequest) -> int:
    """Return the day on which months begin, such as a billing day."""
    day = request.GET.get("day", "")
    return int(day) if re.fullmatch("[1-9]|[12][0-9]|3[01]", day) else 1


def choices(request: HttpRequest) -> Iterator[tuple[str, Any, bool]]:
    """Yield the periods to choose from, as URL, label, and whether it is chosen."""
    for name, (label, _length) in PERIODS.items():
        yield report_url(request, period=name), label, name == _name_in(request)


def _name_in(request: HttpRequest) -> str:
    return request.GET.get("period") or DEFAULT


#: The identities whose top callers are shown first: people, then what stands for them.
_FIRST: Final = ("customer", "user", "api_key", "ip")


def rule_name(viewer: Viewer, slug: str) -> str:
    """Return the name of a rule; for a deleted one its slug."""
    return viewer.rule(slug) or _("unknown rule")


def period_context(viewer: Viewer, period: Period, rule: str | None) -> dict[str, Any]:
    """Return the template's context for a period, and links."""
    request, fresh = viewer.request, freshness()
    return {
        "span": period,
        "overview_url": report_url(request, rule=None, tier=None, by=None, identity=None),
        "top_callers_url": report_url(request, "usage_top_callers", rule=None, tier=None, by=None),
        "callers_url": report_url(request, "usage_callers", tier=None, by=None, identity=None),
        "has_exact": Rule.objects.filter(exact_usage=True, **({"slug": rule} if rule else {})).exists(),
        "fresh": fresh,
        "arrived": ago(fresh.collected_at) if fresh.collected_at else "",
    }


def page_context(viewer: Viewer, report: Report) -> dict[str, Any]:
    """Return the template's context for a report."""
    request, together = viewer.request, report.together
    context = {
        **period_context(viewer, report.period, report.rule),
        "granularity": report.granularity,
        "tier": report.tier,
        "tier_name": None if report.tier is None else _tier_name(viewer, report.tier),
        "all_tiers_url": report_url(request, tier=None),
        "change_url": viewer.rule_url(report.rule or ""),
    }
    if not report.totals:
        return context
    return {
        **context,
        "rows": _rows(viewer, report),
        "together": figure_row(together, report.together_before),
        "counts_once": report.counts_once,
        "before": report.period.before if report.before is not None else None,
        "has_shadow": bool(together.shadow_rejected),
        "has_soft": bool(together.soft_exceeded),
        "has_units": any(each.figures.has_costs for each in report.totals),
        "has_other": any(each.figures.rejected_by_other for each in report.totals),
        "has_degraded": bool(together.degraded),
        "has_exempt": bool(together.exempt),
        "chart": chart.draw(report.points),
        "points": [(chart.span(point), figure_row(point.figures)) for point in report.points],
        "downloads": {table: report_url(request, "usage_data", table) for table in ("totals", "series")},
        **(_top(viewer, report) if report.rule is not None else {}),
    }


def _rows(viewer: Viewer, report: Report) -> list[dict[str, Any]]:
    """Return a row for each rule and tier. Their URLs differ only in the last parameter."""
    of_rule = report_url(viewer.request, "usage_rule", rule="", by=None)
    of_tier = report_url(viewer.request, "usagebucket_changelist" if report.rule is None else "usage_rule", tier="")
    before = report.before or {}
    return [
        {
            "rule": rule_name(viewer, rule),
            "rule_url": of_rule + quote_plus(rule),
            "tier": _tier_name(viewer, tier),
            "tier_url": of_tier + quote_plus(tier),
            "figures": figure_row(figures, None if report.before is None else before.get((rule, tier), Figures())),
        }
        for rule, tier, figures in report.totals
    ]


def _tier_name(viewer: Viewer, slug: str) -> str:
    return viewer.tier(slug) if slug else _("no tier")


def _top(viewer: Viewer, report: Report) -> dict[str, Any]:
    """Return the top callers, with names for readers who may see them."""
    request, rows = viewer.request, report.compared(report.top_partitions)
    known = names_in_words(request.user, [each.partition for each in rows])
    return {
        "top_chart": chart.top(rows, [known.get(each.partition, each.partition) for each in rows]),
        "top_partitions": [_top_row(viewer, report, each, known.get(each.partition, "")) for each in rows],
        "top_partitions_in": report.top_partitions_in,
        "top_before": report.period.before if any(each.requests_before is not None for each in rows) else None,
        "by_rejected": report.by_rejected,
        "is_exact": report.exact is not None,
        "by_requests_url": report_url(request, by=None),
        "by_rejected_url": report_url(request, by="rejected"),
        "top_download": report_url(request, "usage_data", "top", identity=report.identity),
    }


def _top_row(viewer: Viewer, report: Report, row: TopPartitionRow, name: str) -> dict[str, str]:
    share, before = 100 * (row.share or 0), row.requests_before
    return {
        "partition": row.partition,
        "name": name,
        "url": viewer.digest_url(row.partition, **({} if report.rule is None else {"rule": report.rule})),
        **row.in_words(),
        "share": "" if row.share is None else _("%s %%") % number_format(round(share, 1), decimal_pos=1),
        "share_width": f"{share:.2f}%",
        "change": "" if before is None or row.figures["requests"] is None else _change(row.requests, before),
    }


def figure_row(figures: Figures, before: Figures | None = None) -> dict[str, str]:
    """Return figures as text. "" = not known.

    rate_width: the share of rejections as the width of its bar. change: of requests since the period before.
    """
    rate = 100 * (figures.rejection_rate or 0)
    counts = {"requests": figures.requests, **asdict(figures)}
    return {
        **{name: units(count) for name, count in counts.items()},
        "rate": _("%s %%") % number_format(round(rate, 1), decimal_pos=1) if figures.requests else "\u2013",
        "rate_width": f"{rate:.2f}%",
        "change": "" if before is None else _change(figures.requests, before.requests),
    }


def _change(requests: int, before: int) -> str:
    """Return the change in percent."""
    if not before:
        return pgettext("requests where there were none before", "new") if requests else "\u2013"
    change = round(100 * (requests - before) / before)
    sign = "+" if change > 0 else "\u2212" if change < 0 else "\u00b1"
    return _("%s %%") % f"{sign}{units(abs(change))}"


def report_url(request: HttpRequest, page: str = "", *args: str, **changes: str | None) -> str:
    """Return the URL of a page, or of the same one, for the same period. changes: `None` removes a parameter."""
    query = request.GET.copy()
    for name in set(query) - {"period", "rule", "tier", "by", "identity", "day", "caller"}:
        del query[name]
    for name, value in changes.items():
        query.pop(name, None)
        if value is not None:
            query[name] = value
    if not page:
        return f"?{query.urlencode()}"
    current = getattr(request, "current_app", None)
    return reverse(f"admin:django_ratelimiter_{page}", args=args, current_app=current) + f"?{query.urlencode()}"


#: The callers that the page shows, and those whose names are read at once for a file.
MAX_SHOWN: Final = 100
MAX_NAMED: Final = 10_000


def usage_callers_view(page_of: Any, request: HttpRequest) -> TemplateResponse:
    """Show the callers of a rule with exact usage, and one of them by day; 404 if no rule has any."""
    rule, order = _asked_callers(request)
    viewer, period, one = Viewer(request), period_of(request), alias_of(request.GET.get("caller", ""))
    rows = exact_usage(rule, period)
    found, all_together = by_caller(rows, order, MAX_SHOWN), sum_of_exact(rows)
    names = names_in_words(request.user, [*[caller for caller, *_rest in found], one])
    rules = Rule.objects.filter(exact_usage=True).values_list("slug", "name")
    context = {
        **period_context(viewer, period, rule),
        "periods": choices(request),
        "day": day_in(request),
        "rule": rule,
        "rules": [(report_url(request, rule=each, caller=None), name, each == rule) for each, name in rules],
        "orders": {name: report_url(request, by=name, rule=rule) for name in ORDERS},
        "order": order,
        "callers": [
            {
                **figure_row(figures),
                "name": names.get(caller, caller) or _("not told apart"),
                "day_url": report_url(request, caller=whole(caller), rule=rule),
                "url": viewer.digest_url(caller, rule=rule) if identity else "",
            }
            for caller, identity, _value, figures in found
        ],
        "together": figure_row(all_together),
        "has_units": all_together.has_costs,
        "is_incomplete": rows.filter(identity="", value="").exists(),
        "download": report_url(request, "usage_data", "callers", rule=rule),
        "chosen": names.get(one, one),
        "chart": chart.draw(days_of(rule, one, period)) if one else None,
    }
    return show(page_of, request, "usage_callers", _("Usage per caller: %s") % viewer.rule(rule), context)


def _asked_callers(request: HttpRequest) -> tuple[str, str]:
    """Return the rule and the order of the request; 404 for what cannot be."""
    rule = request.GET.get("rule") or Rule.objects.filter(exact_usage=True).values_list("slug", flat=True).first()
    order = request.GET.get("by", "units")
    if rule is None or "\0" in rule or order not in ORDERS:
        raise Http404
    return rule, order


def _rows_of_callers(request: HttpRequest) -> list[dict[str, Any]]:
    """Return all callers of the request, with names and values for readers who may see them."""
    rule, order = _asked_callers(request)
    found, names = by_caller(exact_usage(rule, period_of(request)), order), dict[str, str]()
    for place in range(0, len(found), MAX_NAMED):
        names |= names_in_words(request.user, [caller for caller, *_rest in found[place : place + MAX_NAMED]])
    return [
        {
            "rule_slug": rule,
            "caller": names.get(caller, caller),
            "identity": identity,
            "value": value if caller in names or not identity else "",
            **{name: getattr(figures, name) for name in CallerUsage.COUNTS},
        }
        for caller, identity, value, figures in found
    ]


@admin.register(UsageBucket)
class UsageBucketAdmin(PagesAdmin):
    """Shows only reports: counts cannot be added, changed or deleted here."""

    has_forms = False
    pages = (
        Page("rejections/", rejections_view, _MAY),
        Page("", usage_view, _MAY, "usagebucket_changelist"),
        Page("rule/", usage_rule_view, _MAY),
        Page("top-callers/", usage_top_callers_view, _MAY),
        Page("callers/", usage_callers_view, _MAY),
        Page("<slug:table>.csv", usage_data_view, _MAY),
    )

    def has_view_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return request.user.has_perm(VIEW_USAGE)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: UsageBucket | None = None) -> bool:
        return False
