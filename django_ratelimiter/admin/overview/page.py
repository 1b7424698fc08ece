"""The overview for its template: as text, with links, and only what its viewer may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import router
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ...checks.common import SYMPTOMS
from ...rules.formatting import units
from ...rules.stored import tables
from ...rules.stored.storage import primary
from ...usage.collector.lag import Lag
from ...usage.reports.chart import Bar, bars
from ...usage.reports.totals import Freshness, freshness
from ..formatting import ago
from ..history import offered_undo
from ..identities import names_in_words
from ..viewer import Viewer
from . import last_hour
from .attention import Item, health_items, proxy_items, read_waiting, rule_items, status_items, usage_items
from .health import Health, Status, engine_in_words, outage_began, read_health, read_status
from .last_hour import LastHour
from .search import search_context


def overview_context(request: HttpRequest) -> dict[str, Any]:
    """Return the template's context; empty for staff who could open none of its pages."""
    viewer = Viewer(request)
    if not viewer.sees_overview:
        return {}
    if not tables.exists("RuleSetVersion", router.db_for_write):
        text = _("The tables of this app do not exist yet. Run manage.py migrate.")
        return {"tables_missing": text.replace("manage.py migrate", tables.command_for(primary()))}
    health = read_health(in_detail=viewer.sees_engine)
    status = read_status(health)
    items: list[Item] = [*status_items(status, health, viewer), *health_items(health), *proxy_items(health)]
    context: dict[str, Any] = {
        "status": status,
        "degraded_since": outage_began(health),
        "pages": _pages(viewer, status),
        **search_context(viewer),
    }
    if not viewer.sees_engine:
        return context
    context["health"] = _health(health, viewer)
    if viewer.sees_rules:
        context["version"] = _version(status, viewer)
    if viewer.sees_usage:
        fresh, hour = freshness(), last_hour.read_last_hour()
        is_known = fresh.collected_at is not None or fresh.latest is not None  # else all figures would be 0
        answers = health.milliseconds is not None
        waiting = read_waiting(fresh) if answers else None
        items += usage_items(hour, waiting, viewer, is_known=is_known, engine_answers=answers)
        context |= {
            "collected": _collected(fresh, waiting),
            "hour_is_known": is_known,
            **_hour(hour, viewer),
        }
    if viewer.sees_rules:
        items += rule_items(viewer)
    return {**context, "items": items, "symptoms_url": SYMPTOMS}


def _version(status: Status, viewer: Viewer) -> Mapping[str, Any] | None:
    if not status.number:
        return None
    return {
        "number": status.number,
        "row": status.version,
        "undo": offered_undo(viewer),
        "url": viewer.url("history_version", str(status.number)) or viewer.url("history"),
    }


def _health(health: Health, viewer: Viewer) -> Mapping[str, Any]:
    server = engine_in_words()
    milliseconds = health.milliseconds
    return {
        "is_memory": not server,
        "server": server if viewer.sees_rules else "",
        "round_trip": None if milliseconds is None else _("%s ms") % number_format(round(milliseconds, 1), 1),
        "problem": health.problem if viewer.sees_rules else "",
        "open_breakers": health.open_breakers,
    }


def _collected(fresh: Freshness, waiting: Lag | None) -> str:
    """Return when counts were last added, and that none wait if that was long ago; empty = never."""
    if fresh.collected_at is None:
        return _("more than a week ago") if fresh.latest else ""
    when = ago(fresh.collected_at)
    return _("%(when)s; nothing is waiting") % {"when": when} if waiting and not waiting.batches else when


def _hour(hour: LastHour, viewer: Viewer) -> dict[str, Any]:
    starts = [hour.period.start + (hour.period.end - hour.period.start) * place / 60 for place in range(60)]
    times = [date_format(timezone.localtime(start), "H:i") for start in starts]
    return {
        "hour_from": times[0],
        "hour_until": date_format(timezone.localtime(hour.period.end), "H:i T"),
        "hour_bars": _bars(times, hour.by_minute),
        "hour_most": units(max(hour.by_minute)),
        "figures": hour.figures,
        "rules": [
            {
                "name": viewer.rule(rule.slug),
                "url": viewer.rule_url(rule.slug),
                "report_url": viewer.report_url(rule.slug),
                "figures": rule.figures,
                "bars": _bars(times, rule.by_minute),
                "in_words": _("At most %s in a minute") % units(max(rule.by_minute)),
            }
            for rule in hour.rules
        ],
        "callers": _callers(viewer),
        "report_url": viewer.url("usagebucket_changelist", period="1h"),
    }


def _callers(viewer: Viewer) -> list[dict[str, Any]]:
    found = last_hour.read_rejected_callers()
    names = names_in_words(viewer.request.user, [each.partition for each in found])
    return [
        {
            "caller": caller,
            "name": names.get(caller.partition, ""),
            "url": viewer.digest_url(caller.partition, rule=caller.rule_slug),
            "rule": viewer.rule(caller.rule_slug),
            "rule_url": viewer.report_url(caller.rule_slug, by="rejected"),
        }
        for caller in found
    ]


def _bars(times: list[str], values: list[int]) -> list[Bar]:
    labels = [f"{time}: {units(value)}" for time, value in zip(times, values, strict=True)]
    return bars([{"rejected": value} for value in values], labels)


def _pages(viewer: Viewer, status: Status) -> list[dict[str, Any]]:
    """Return the linked pages; those that this site lacks are left out."""
    is_stopped = status.state == "stopped"
    links = [
        (viewer.sees_callers, _("Find a caller"), "caller"),
        (viewer.sees_rules, _("Rules"), "rule_changelist"),
        (viewer.sees_rules, pgettext("of the rules", "History"), "history"),
        (viewer.sees_rules, _("Explain a request"), "explain"),
        (viewer.sees_usage, _("Recent rejections"), "rejections"),
        (viewer.sees_usage, _("Top callers"), "usagebucket_top_callers"),
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
