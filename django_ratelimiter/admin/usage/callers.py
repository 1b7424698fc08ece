"""The page of exact usage: every caller of a rule in a month or a billing period."""

from __future__ import annotations

from typing import Any, Final

from django.http import Http404, HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from ...models import CallerUsage, Rule
from ...usage.reports import callers, chart
from ...values.digests import alias_of, whole
from ..formatting import names_in_words
from ..pages import show
from ..viewer import Viewer
from . import admin as reports

#: The callers that the page shows, and those whose names are read at once for a file.
MAX_SHOWN: Final = 100
MAX_NAMED: Final = 1_000


def usage_callers_view(page_of: Any, request: HttpRequest) -> TemplateResponse:
    """Show the callers of a rule with exact usage, and one of them by day; 404 if no rule has any."""
    rule, order = _asked(request)
    viewer, period, one = Viewer(request), reports.period_of(request), alias_of(request.GET.get("caller", ""))
    rows = callers.rows_of(rule, period)
    found, all_together = callers.sums_of(rows, order, MAX_SHOWN), callers.together(rows)
    names = names_in_words(request.user, [*[caller for caller, *_rest in found], one])
    rules = Rule.objects.filter(exact_usage=True).values_list("slug", "name")
    context = {
        **reports.period_context(viewer, period, rule),
        "periods": reports.choices(request),
        "day": reports.day_in(request),
        "rule": rule,
        "rules": [(reports.report_url(request, rule=each, caller=None), name, each == rule) for each, name in rules],
        "orders": {name: reports.report_url(request, by=name, rule=rule) for name in callers.ORDERS},
        "order": order,
        "callers": [
            {
                **reports.figure_row(figures),
                "name": names.get(caller, caller) or _("not told apart"),
                "day_url": reports.report_url(request, caller=whole(caller), rule=rule),
                "url": viewer.digest_url(caller, rule=rule) if identity else "",
            }
            for caller, identity, _value, figures in found
        ],
        "together": reports.figure_row(all_together),
        "has_units": all_together.has_costs,
        "has_more": len(found) == MAX_SHOWN,
        "is_incomplete": rows.filter(identity="", value="").exists(),
        "downloads": reports.downloads(request, "callers", rule=rule)[:1],
        "chosen": names.get(one, one),
        "chart": chart.draw(callers.days_of(rows, one, period)) if one else None,
    }
    return show(page_of, request, "usage_callers", _("Usage per caller: %s") % viewer.rule(rule), context)


def _asked(request: HttpRequest) -> tuple[str, str]:
    """Return the rule and the order of the request; 404 for what cannot be."""
    rule = request.GET.get("rule") or Rule.objects.filter(exact_usage=True).values_list("slug", flat=True).first()
    order = request.GET.get("by", "units")
    if rule is None or "\0" in rule or order not in callers.ORDERS:
        raise Http404
    return rule, order


def rows_of_file(request: HttpRequest) -> list[dict[str, Any]]:
    """Return all callers of the request, with names and values for readers who may see them."""
    rule, order = _asked(request)
    found, names = callers.sums_of(callers.rows_of(rule, reports.period_of(request)), order), dict[str, str]()
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
