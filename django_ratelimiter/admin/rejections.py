"""The page of recent rejections, which updates by itself, and what a caller's page shows of a rejection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ..engine.usage.rejections import RECORDED_ONE_IN, Rejection
from ..exceptions import EngineUnavailable
from ..identity import is_of_unreadable
from ..inspection.counters import CallerRejection, limit_that_rejected
from ..inspection.grounds import Grounds
from ..inspection.references import everybody, recent, revealed_to
from ..inspection.words import reach_in_words, rejected_now_in_words
from ..models import AccessEntry
from ..rules import cache, inline
from ..rules.records import RuleRecord
from ..usage.reports.totals import about
from ..values.references import Reference, reference_of
from .formatting import breakable, in_words
from .pages import show
from .viewer import Viewer


def rejection_rows(rejections: Iterable[CallerRejection], viewer: Viewer, grounds: Grounds) -> list[dict[str, Any]]:
    """Return the rows of rejections, for a caller's page."""
    found = []
    for each in rejections:
        slug, _sign, start = each.reference.partition("#")
        is_shared = Reference(slug, start).is_of(everybody())
        row = {"row": each, "url": viewer.rule_url(slug), "tier": "" if is_shared else viewer.tier(each.tier)}
        times = about(each.times, is_estimate=each.is_estimate)
        found.append(row | {"times": times, "now": rejected_now_in_words(each, grounds)})
    return found


#: Maximum number of rows.
MAX_ROWS: Final = 100

#: A row of the table: its cells as text, and the URLs of pages that the reader may open.
Row = dict[str, Any]


def rejections_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Show the page, or only the rows if `part` is in the query."""
    viewer = Viewer(request)
    rule = request.GET.get("rule") or None
    records = {rule.slug: rule for rule in (*inline.registered(), *cache.current_rules().rules)}
    context: dict[str, Any] = {"rows": [], "rule": rule, "most": MAX_ROWS}
    context["one_in"] = RECORDED_ONE_IN
    try:
        found = recent(MAX_ROWS, rule)
        context["rows"] = [*_rows(viewer, found, records)]
        context["is_estimated"] = any(each.is_estimate for each in found)
    except EngineUnavailable:
        context["unavailable"] = True
    if "part" in request.GET:
        return TemplateResponse(request, "admin/django_ratelimiter/rejections_rows.html", context)
    context |= {
        "rules": sorted(records),
        "every": 5,  # seconds between two updates
        "query": urlencode({"rule": rule} if rule else {}),
        "access_url": viewer.url("accessentry_changelist", action__exact="deny") if viewer.sees(AccessEntry) else "",
    }
    return show(page_of, request, "rejections", _("Recent rejections"), context)


def _rows(viewer: Viewer, rejections: list[Rejection], records: Mapping[str, RuleRecord]) -> Iterator[Row]:
    """Yield the rows in this order; names are read once for all."""
    known = revealed_to(viewer.request.user, [each.partition for each in rejections])
    callers = {**in_words(viewer.request.user, known), everybody(): _("all callers together")}
    unreadable = _("Requests whose body cannot be read")
    for each in rejections:
        record, reference = records.get(each.rule), reference_of(each.rule, each.partition)
        yield {
            "at": (at := datetime.fromtimestamp(each.at_us / 1_000_000, UTC)),
            "at_text": _clock(at),
            "since": (since := datetime.fromtimestamp(each.since_us / 1_000_000, UTC)),
            "since_text": _clock(since),
            "number": each.at_us,  # to find new rows
            "times": about(each.times, is_estimate=each.is_estimate),
            "rule": viewer.rule(each.rule),
            "tier": viewer.tier(each.tier),
            "limit": limit_that_rejected(each, record) if record else "",
            "reach": breakable(reach_in_words(record) or _("all requests")) if record else "",
            "caller": each.partition,
            "reference": reference,
            "name": unreadable if is_of_unreadable(each.partition) else callers.get(each.partition, ""),
            "caller_url": viewer.digest_url(each.partition, rule=each.rule),
            "explain_url": viewer.explain_url({"reference": reference}) if record else "",
            "shadow": each.shadow,
        }


def _clock(moment: datetime) -> str:
    """Return the time of day, with the day of the week unless it is today."""
    moment = timezone.localtime(moment)
    today = timezone.localdate(datetime.now(UTC))  # without USE_TZ, Django's default is naive
    return date_format(moment, "H:i:s" if moment.date() == today else "D H:i:s")
