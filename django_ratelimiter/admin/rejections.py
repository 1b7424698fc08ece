"""The page of recent rejections by rules and access entries. It updates by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ..engine.usage.rejections import RECORDED_ONE_IN, Rejection
from ..exceptions import EngineUnavailable
from ..identity import is_of_unreadable
from ..inspection.asking import asked_of_caller
from ..inspection.counters import limit_that_rejected
from ..inspection.words import reach_in_words
from ..models import AccessEntry
from ..rules import cache, inline
from ..rules.formatting import units
from ..rules.records import RuleRecord
from ..usage.live import names as caller_names
from ..usage.live.denials import DeniedCaller, recently_denied
from ..usage.live.names import Name, revealed_to
from ..usage.live.rejections import MAX_READ, certain_times, recent, times_in_words
from ..values.references import reference_of
from .formatting import breakable
from .identities import label_of
from .logged import asked_about
from .names import in_words
from .pages import PagesAdmin
from .viewer import VIEW_USAGE, Viewer

#: Maximum number of rows.
MAX_ROWS: Final = 100

#: The value instead of a rule that selects denials by access entries. No slug has such a character.
BY_ACCESS: Final = "@access"

#: Seconds between two updates.
UPDATE_SECONDS: Final = 5

#: A row of the table: its cells as text, and the URLs of pages that the reader may open.
Row = dict[str, Any]


class RejectionsPage(PagesAdmin):
    """An admin with the page, which needs the same permission as reports."""

    def get_urls(self) -> list[URLPattern]:
        return [self.page_path("rejections/", self.rejections_view, "rejections", VIEW_USAGE)]

    def rejections_view(self, request: HttpRequest) -> HttpResponse:
        """Show the page, or only the rows if `part` is in the query."""
        viewer = Viewer(request)
        rule = request.GET.get("rule") or None
        records = {rule.slug: rule for rule in (*inline.registered(), *cache.current_rules().rules)}
        context: dict[str, Any] = {"rows": [], "rule": rule, "most": MAX_ROWS, "by_access": BY_ACCESS}
        context["one_in"] = RECORDED_ONE_IN
        try:
            rejected = [] if rule == BY_ACCESS else recent(rule=rule)
            denied = recently_denied(MAX_READ) if rule in (None, BY_ACCESS) else []
            in_flood = any(each.is_estimate for each in rejected)
            order = request.GET.get("order") or ("times" if in_flood else "last")
            certain = certain_times(rejected)
            found: list[Rejection | DeniedCaller] = [*rejected, *denied]
            found.sort(key=lambda each: _rank(each, certain, order), reverse=True)
            context |= {
                "rows": _rows(viewer, found[:MAX_ROWS], records, certain),
                "order": order,
                "is_estimated": in_flood,
                "order_query": urlencode({"rule": rule} if rule else {}),
            }
        except EngineUnavailable:
            context["unavailable"] = True
        if "part" in request.GET:
            return TemplateResponse(request, "admin/django_ratelimiter/rejections_rows.html", context)
        context |= {
            "rules": sorted(records),
            "every": UPDATE_SECONDS,
            "query": urlencode({name: value for name in ("rule", "order") if (value := request.GET.get(name))}),
            "access_url": viewer.url("accessentry_changelist", action__exact="deny") if viewer.sees_access else "",
        }
        return self.page(request, "rejections", _("Recent rejections"), context)


def _rank(found: Rejection | DeniedCaller, certain: Mapping[str, int], order: str) -> tuple[int, int]:
    """Return how far above a row is: by how often, or only by when, and then by when."""
    if isinstance(found, Rejection):
        times, at_us = certain[found.counter], found.at_us
    else:
        times, at_us = found.times, int(found.at.timestamp() * 1_000_000)
    return times if order == "times" else 0, at_us


def _rows(
    viewer: Viewer,
    found: list[Rejection | DeniedCaller],
    records: Mapping[str, RuleRecord],
    certain: Mapping[str, int],
) -> list[Row]:
    """Return the rows in this order; names are read once for all."""
    rejected = [each for each in found if isinstance(each, Rejection)]
    denied = [each for each in found if isinstance(each, DeniedCaller)]
    rows = {"rejected": _rejected(viewer, rejected, records, certain), "denied": _denied(viewer, denied)}
    return [next(rows["rejected" if isinstance(each, Rejection) else "denied"]) for each in found]


def _rejected(
    viewer: Viewer, rejections: list[Rejection], records: Mapping[str, RuleRecord], certain: Mapping[str, int]
) -> Iterator[Row]:
    seen = caller_names.views((each.rule, each.partition) for each in rejections)
    known = revealed_to(viewer.request.user, [each.partition for each in rejections])
    callers, unreadable = in_words(viewer.request.user, known), _("Requests whose body cannot be read")
    for each in rejections:
        record, view = records.get(each.rule), seen.get((each.rule, each.partition))
        yield {
            **_times(each.at_us, each.since_us),
            "times": times_in_words(each.times, certain[each.counter], is_estimate=each.is_estimate),
            "rule": viewer.rule(each.rule),
            "tier": viewer.tier(each.tier),
            "limit": limit_that_rejected(each, record) if record else "",
            "reach": breakable(view or (reach_in_words(record) or _("all requests") if record else "")),
            "caller": each.partition,
            "reference": reference_of(each.rule, each.partition),
            "name": unreadable if is_of_unreadable(each.partition) else callers.get(each.partition, ""),
            "caller_url": viewer.digest_url(each.partition, rule=each.rule),
            "explain_url": viewer.explain_url(_asked(each, record, view, known.get(each.partition))) if record else "",
            "shadow": each.shadow,
        }


def _denied(viewer: Viewer, found: list[DeniedCaller]) -> Iterator[Row]:
    """Yield a row for each denied caller. Names need the permission to view access entries."""
    shown = {each.entry for each in found if each.entry} if viewer.sees_access else ()
    entries = AccessEntry.objects.in_bulk(shown) if shown else {}
    known = revealed_to(viewer.request.user, [each.digest for each in found])
    callers = in_words(viewer.request.user, known)
    for each in found:
        entry, name = entries.get(each.entry or 0), known.get(each.digest)
        asked = {"view": each.view, **asked_of_caller(name)} if each.view and name else {}
        yield {
            **_times(*(int(moment.timestamp() * 1_000_000) for moment in (each.at, each.since))),
            "times": units(each.times),
            "rule": viewer.entry(entry) if entry else label_of(each.kind),
            "reach": breakable(each.view),
            "caller": each.digest,
            "name": callers.get(each.digest, ""),
            "caller_url": viewer.digest_url(each.digest) if each.digest else "",
            "explain_url": viewer.explain_url(asked) if asked else "",
            "is_access": True,
            "reason": entry.reason if entry else "",
            "entry_url": viewer.url("accessentry_change", entry.pk) if entry else "",
        }


def _times(at_us: int, since_us: int) -> Row:
    """Return the times of a row. number: to sort by, and to find new rows."""
    at, since = (datetime.fromtimestamp(each / 1_000_000, UTC) for each in (at_us, since_us))
    return {"at": at, "at_text": _clock(at), "since": since, "since_text": _clock(since), "number": at_us}


def _clock(moment: datetime) -> str:
    """Return the time of day, with the day of the week unless it is today."""
    moment = timezone.localtime(moment)
    today = timezone.localdate(datetime.now(UTC))  # without USE_TZ, Django's default is naive
    return date_format(moment, "H:i:s" if moment.date() == today else "D H:i:s")


def _asked(rejection: Rejection, record: RuleRecord, view: str | None, name: Name | None) -> dict[str, str]:
    """Return the data for a question to the page that explains, as far as it is known.

    If the caller is not known, that page asks for the caller first: the result would be for another one.
    """
    known = asked_of_caller(name) if name else {}
    return asked_about(record, rejection.partition, known, view or "")
