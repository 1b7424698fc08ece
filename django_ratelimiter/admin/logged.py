"""The page that explains, before the first question: what it shows for a pasted log line or reference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest

from ..inspection.counters import CallerRejection, rejections_logged
from ..inspection.explanation import CALLER_FIELDS, SEES_TIERS
from ..inspection.question import Question
from ..inspection.references import ParsedRejection, asked_of, digests_of, everybody
from ..inspection.words import rejected_now_in_words
from ..limiter.templates import missing
from ..rules import cache
from ..usage.live.rejections import times_in_words
from ..values.references import DIGITS, Reference
from .viewer import Viewer


def prefilled(logged: ParsedRejection, data: dict[str, Any]) -> dict[str, Any]:
    """Return the initial data of the form for a log line: a request that its rule matches, and its caller."""
    found = {name: value for name, value in data.items() if value and name not in ("pasted", *CALLER_FIELDS)}
    asked = {name: data[name] for name in ("path", "view", "scope")}
    question = asked_of(logged, Question(method=data["method"] or "GET", **asked))
    identifying = {"digest": logged.digest, "logged_rules": " ".join(logged.rules)}
    return found | identifying | {name: getattr(question, name) for name in ("method", *asked)}


def logged_context(request: HttpRequest, logged: ParsedRejection) -> dict[str, Any]:
    """Return the page's context for a log line or reference: the possible callers and the rule."""
    found, context = Reference(logged.rule, logged.digest), {"logged": logged}
    is_common = found.is_of(everybody()) or found.is_of(missing())
    viewer = Viewer(request)
    digests = [logged.digest] if len(logged.digest) > DIGITS else []
    if not digests and logged.digest and request.user.has_perm(SEES_TIERS) and not is_common:
        digests = digests_of(found)
    urls = [caller_url(viewer, digest=digest, rule=logged.rule) for digest in digests if not is_common]
    return context | {
        "is_shared": bool(logged.digest) and found.is_of(everybody()),
        "is_missing": bool(logged.digest) and found.is_of(missing()),
        "logged_rule_url": viewer.rule_url(logged.rule),
        "logged_urls": list(filter(None, urls)),
        "rejections": rejection_rows(
            rejections_logged(logged.is_of, cache.latest_rules()) if viewer.may("view_usage_report") else (), viewer
        ),
    }


def caller_url(viewer: Viewer, **named: str) -> str:
    """Return the URL of a caller's page; "" without the permission to name callers, or if there is no such page."""
    return viewer.url("caller", **named) if viewer.request.user.has_perm(SEES_TIERS) else ""


def rejection_rows(rejections: Iterable[CallerRejection], viewer: Viewer) -> list[dict[str, Any]]:
    """Return the rows of rejections: for the page that explains and for the caller's page."""
    found = []
    for each in rejections:
        slug, _sign, start = each.reference.partition("#")
        is_shared = Reference(slug, start).is_of(everybody())
        row = {"row": each, "url": viewer.rule_url(slug), "tier": "" if is_shared else viewer.tier(each.tier)}
        times = times_in_words(each.times, each.at_least, is_estimate=each.is_estimate)
        found.append(row | {"times": times, "now": rejected_now_in_words(each)})
    return found
