"""What pages show of a logged rejection, and what they ask the page that explains about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.http import HttpRequest

from ..exceptions import EngineUnavailable
from ..inspection.caller import by_key, is_hash
from ..inspection.counters import CallerRejection, rejections_logged
from ..inspection.explanation import CALLER_FIELDS, SEES_TIERS, AccessExplanation
from ..inspection.question import Question
from ..inspection.references import ParsedRejection, asked_of, digests_of, everybody
from ..inspection.words import rejected_now_in_words
from ..limiter.templates import missing
from ..rules import cache
from ..rules.records import RuleRecord
from ..usage.live.names import Name, revealed_to
from ..usage.live.rejections import times_in_words
from ..values.references import DIGITS, Reference, reference_of
from .viewer import Viewer


def prefilled(request: HttpRequest, logged: ParsedRejection, data: dict[str, Any]) -> dict[str, Any]:
    """Return the initial data of the form for a log line: a request that its rule matches, and its caller.

    The caller is only known to readers who may see names.
    """
    found = {name: value for name, value in data.items() if value and name not in ("pasted", *CALLER_FIELDS)}
    asked = {name: data[name] for name in ("path", "view", "scope")}
    question = asked_of(logged, Question(method=data["method"] or "GET", **asked))
    identifying = {"digest": logged.digest, "logged_rules": " ".join(logged.rules)}
    names = [*revealed_to(request.user, _digests(request, logged) or ()).values()]
    caller = asked_of_caller(names[0]) if len(names) == 1 else {}
    return found | identifying | caller | {name: getattr(question, name) for name in ("method", *asked)}


def _digests(request: HttpRequest, logged: ParsedRejection) -> list[str] | None:
    """Return the callers that a log line may mean, for readers who may name callers; none if it means nobody.

    `None` = not known, because Redis does not answer.
    """
    found = Reference(logged.rule, logged.digest)
    if not logged.digest or not request.user.has_perm(SEES_TIERS) or found.is_of(everybody()) or found.is_of(missing()):
        return []
    try:
        return [logged.digest] if len(logged.digest) > DIGITS else digests_of(found)
    except EngineUnavailable:
        return None


def logged_context(request: HttpRequest, logged: ParsedRejection) -> dict[str, Any]:
    """Return the page's context for a log line or reference: the possible callers and the rule."""
    found, viewer = Reference(logged.rule, logged.digest), Viewer(request)
    digests = _digests(request, logged)
    urls = [caller_url(viewer, digest=digest, rule=logged.rule) for digest in digests or ()]
    return {
        "logged": logged,
        "is_shared": bool(logged.digest) and found.is_of(everybody()),
        "is_missing": bool(logged.digest) and found.is_of(missing()),
        "logged_rule_url": viewer.rule_url(logged.rule),
        "logged_urls": list(filter(None, urls)),
        "is_unavailable": digests is None,
        "rejections": rejection_rows(
            rejections_logged(logged.is_of, cache.latest_rules()) if viewer.may("view_usage_report") else (), viewer
        ),
    }


def caller_url(viewer: Viewer, **named: str) -> str:
    """Return the URL of a caller's page; "" without the permission to name callers, or if there is no such page."""
    return viewer.url("caller", **named) if viewer.request.user.has_perm(SEES_TIERS) else ""


def asked_about(rule: RuleRecord, digest: str, known: Mapping[str, str], view: str = "") -> dict[str, str]:
    """Return the question to the page that explains about a rejection by a rule: what it matches, and who asks.

    known: the caller. Without it, and if the rule counts callers separately, that page asks for the caller first. view:
    where the caller was rejected; empty = what the rule names.
    """
    path = rule.path if rule.path_kind in ("exact", "prefix") and not view else ""
    asked = {"method": min(rule.methods, default=""), "view": view or rule.view_name, "path": path, "scope": rule.scope}
    if known or rule.is_shared:
        asked |= {**known, "logged_rules": rule.slug, "digest": digest}
    else:
        asked["reference"] = reference_of(rule.slug, digest)
    return {name: value for name, value in asked.items() if value}


def asked_of_caller(name: Name) -> dict[str, str]:
    """Return the data for a question about this caller."""
    if name.kind not in ("user", "ip", "api_key") or (name.kind == "api_key" and not is_hash(name.value)):
        return {}
    return {name.kind: by_key(name.value) if name.kind == "user" else name.value}


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
