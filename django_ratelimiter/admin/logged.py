"""What pages show of a logged rejection, and what they ask the page that explains about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.http import HttpRequest

from ..exceptions import EngineUnavailable
from ..inspection.counters import CallerRejection, rejections_logged
from ..inspection.explanation import rejected_now_in_words
from ..inspection.grounds import SEES_TIERS, AccessExplanation
from ..inspection.references import Rejected, everybody
from ..rules import cache
from ..rules.records import RuleRecord
from ..usage.live.rejections import times_in_words
from ..values.digests import whole
from ..values.references import Reference, reference_of
from .viewer import Viewer


def logged_context(request: HttpRequest, logged: Rejected) -> dict[str, Any]:
    """Return the page's context for a reference: the possible callers and the rule."""
    viewer, rejections = Viewer(request), []
    try:
        if viewer.may("view_usage_report"):
            rejections = rejections_logged(logged.is_of, cache.latest_rules())
    except EngineUnavailable as error:
        logged = logged._replace(problem=str(error))
    slug = logged.reference.rule
    urls = [caller_url(viewer, digest=whole(caller), rule=slug) for caller in logged.callers]
    return {
        "logged": logged,
        "logged_rule_url": viewer.rule_url(slug),
        "logged_urls": list(filter(None, urls)),
        "rejections": rejection_rows(rejections, viewer),
    }


def caller_url(viewer: Viewer, **named: str) -> str:
    """Return the URL of a caller's page; "" without the permission to name callers, or if there is no such page."""
    return viewer.url("caller", **named) if viewer.request.user.has_perm(SEES_TIERS) else ""


def asked_about(rule: RuleRecord, digest: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the question to the page that explains about a rejection by a rule: what it matches, and who asks.

    known: the caller. Without it, and if the rule counts callers separately, that page asks for the caller first.
    """
    path = rule.path if rule.path_kind in ("exact", "prefix") else ""
    asked = {"method": min(rule.methods, default=""), "view": rule.view_name, "path": path, "scope": rule.scope}
    asked |= {**known, "reference": reference_of(rule.slug, digest)}
    return {name: value for name, value in asked.items() if value}


def rejection_rows(
    rejections: Iterable[CallerRejection], viewer: Viewer, access: AccessExplanation | None = None
) -> list[dict[str, Any]]:
    """Return the rows of rejections, for the page that explains and for the caller's. access: the caller's entry."""
    found = []
    for each in rejections:
        slug, _sign, start = each.reference.partition("#")
        is_shared = Reference(slug, start).is_of(everybody())
        row = {"row": each, "url": viewer.rule_url(slug), "tier": "" if is_shared else viewer.tier(each.tier)}
        times = times_in_words(each.times, each.at_least, is_estimate=each.is_estimate)
        found.append(row | {"times": times, "now": rejected_now_in_words(each, access)})
    return found
