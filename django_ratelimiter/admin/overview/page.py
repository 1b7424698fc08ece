"""The overview for its template: as text, with links, and only what its viewer may see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

from django.db import router
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ...checks.common import SYMPTOMS
from ...models import UsageBucket
from ...rules.formatting import ago, units
from ...rules.stored import storage, tables
from ...rules.stored.history.back import BROUGHT_BACK
from ...rules.stored.history.changes import RECENT
from ...rules.stored.storage import primary
from ...usage.collector.alerts import Lag
from ...usage.reports.chart import bars
from ...usage.reports.coverage import HOUR
from ...usage.reports.totals import SUMS, Figures, Freshness, by_start, freshness, last
from ...usage.times import Granularity, aware, stored
from ..viewer import Viewer
from . import state
from .state import RESET, RESUMED, STOPPED, Item, Status


def overview_context(request: HttpRequest) -> dict[str, Any]:
    """Return the template's context; empty for staff who could open none of its pages."""
    viewer = Viewer(request)
    if not viewer.sees_overview:
        return {}
    if not tables.exists("RuleSetVersion", router.db_for_write):
        text = _("The tables of this app do not exist yet. Run manage.py migrate.")
        return {"tables_missing": text.replace("manage.py migrate", tables.command_for(primary()))}
    health = state.read_health(in_detail=viewer.sees_engine)
    status = state.read_status(health)
    items: list[Item] = [
        *state.status_items(status, health, viewer),
        *state.health_items(health),
        *state.proxy_items(health),
    ]
    context: dict[str, Any] = {
        "status": status,
        "degraded_since": state.outage_began(health),
        "pages": _pages(viewer, status),
        **viewer.search_context(),
    }
    if not viewer.sees_engine:
        return context
    context |= {"health": health, "server": state.engine_in_words(), "sees_rules": viewer.sees_rules}
    if viewer.sees_rules:
        context["version"] = _version(status, viewer)
    if viewer.sees_usage:
        fresh, hour = freshness(), _last_hour(viewer)
        is_known = fresh.collected_at is not None or fresh.latest is not None  # else all figures would be 0
        answers = health.milliseconds is not None
        waiting = state.read_waiting(fresh) if answers else None
        items += state.usage_items(hour["figures"], waiting, viewer, is_known=is_known, engine_answers=answers)
        context |= {"collected": _collected(fresh, waiting), "hour_is_known": is_known, **hour}
    if viewer.sees_rules:
        items += state.rule_items(viewer)
    return {**context, "items": items, "symptoms_url": SYMPTOMS}


def _version(status: Status, viewer: Viewer) -> Mapping[str, Any] | None:
    if not status.latest.number:
        return None
    return {
        "number": status.latest.number,
        "row": status.version,
        "url": viewer.version_url("history_version", status.latest) or viewer.url("history"),
        **_way_back(viewer),
    }


def _way_back(viewer: Viewer) -> dict[str, Any]:
    """Return the last change of rules, and the version before it to bring back; empty = none, or they may not.

    By its summary: what it changed is read on the next page. Not of one that has itself brought a version back.
    """
    rows = storage.snapshots().defer("snapshot")[: RECENT + 1] if viewer.may("publish_rule") else ()
    changes = (pair for pair in pairwise(rows) if not pair[0].summary.startswith((STOPPED, RESUMED, RESET)))
    changed, before = next(changes, (None, None))
    if changed is None or changed.summary.startswith(BROUGHT_BACK):
        return {}
    return {"changed": changed, "before": before, "back_url": viewer.version_url("history_bring_back", before)}


def _collected(fresh: Freshness, waiting: Lag | None) -> str:
    """Return when counts were last added, and that none wait if that was long ago; empty = never."""
    if fresh.collected_at is None:
        return _("more than a week ago") if fresh.latest else ""
    when = ago(fresh.collected_at)
    return _("%(when)s; nothing is waiting") % {"when": when} if waiting and not waiting.batches else when


def _last_hour(viewer: Viewer) -> dict[str, Any]:
    """Return the context of the hour before the running minute: by minute, and of the rules that rejected most.

    figures: of all rules, each request once. Two queries.
    """
    period = last(HOUR)
    within = Q(granularity=Granularity.MINUTE, start__gte=stored(period.start), start__lt=stored(period.end))
    found = {aware(start): figures for start, figures in by_start(within).items()}
    minutes = [period.start + timedelta(minutes=place) for place in range(60)]
    rejected = [found.get(minute, Figures()).rejected for minute in minutes]
    times = [date_format(timezone.localtime(minute), "H:i") for minute in minutes]
    labels = [f"{time}: {units(value)}" for time, value in zip(times, rejected, strict=True)]
    rows: QuerySet[Any, Any] = UsageBucket.objects.order_by().filter(within)
    sums = rows.values_list("rule_slug").annotate(**SUMS)
    rejecting = sums.filter(Q(sum_rejected__gt=0) | Q(sum_shadow_rejected__gt=0))
    ranked = rejecting.order_by("-sum_rejected", "-sum_shadow_rejected", "rule_slug")[:8]
    return {
        "hour_from": times[0],
        "hour_until": date_format(timezone.localtime(period.end), "H:i T"),
        "hour_bars": bars([{"rejected": value} for value in rejected], labels),
        "hour_most": units(max(rejected)),
        "figures": sum(found.values(), Figures()),
        "rules": [
            {
                "name": viewer.rule(slug),
                "url": viewer.rule_url(slug),
                "report_url": viewer.report_url(slug),
                "figures": Figures(*figures),
            }
            for slug, *figures in ranked
        ],
        "report_url": viewer.url("usagebucket_changelist", period="1h"),
    }


def _pages(viewer: Viewer, status: Status) -> list[dict[str, Any]]:
    """Return the linked pages; those that this site lacks are left out."""
    is_stopped = status.state == "stopped"
    links = [
        (viewer.sees_callers, _("Find a caller"), "caller"),
        (viewer.sees_rules, _("Rules"), "rule_changelist"),
        (viewer.sees_rules, pgettext("of the rules", "History"), "history"),
        (viewer.sees_rules, _("Explain a request"), "explain"),
        (viewer.sees_usage, _("Recent rejections"), "rejections"),
        (viewer.sees_usage, _("Top callers"), "usage_top_callers"),
        (viewer.sees_usage, _("Usage reports"), "usagebucket_changelist"),
        (
            viewer.may("switch_enforcement"),
            _("Resume enforcement") if is_stopped else _("Stop all enforcement"),
            "enforcement",
        ),
    ]
    return [
        {"text": text, "url": url, "is_danger": page == "enforcement" and not is_stopped}
        for may, text, page in links
        if may and (url := viewer.url(page))
    ]
