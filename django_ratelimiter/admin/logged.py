"""The page that explains, before the first question: what it shows for a pasted log line or reference."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from ..inspection.explanation import CALLER_FIELDS, SEES_TIERS
from ..inspection.question import Question
from ..inspection.references import ParsedRejection, asked_of, digests_of, everybody
from ..limiter.templates import missing
from ..models import Rule
from ..values.references import DIGITS, Reference


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
    keys = dict(Rule.objects.filter(slug=logged.rule).values_list("slug", "pk"))
    digests = [logged.digest] if len(logged.digest) > DIGITS else []
    if not digests and logged.digest and request.user.has_perm(SEES_TIERS) and not is_common:
        digests = digests_of(found)
    urls = [caller_url(request, digest=digest, rule=logged.rule) for digest in digests if not is_common]
    return context | {
        "is_shared": bool(logged.digest) and found.is_of(everybody()),
        "is_missing": bool(logged.digest) and found.is_of(missing()),
        "logged_rule_url": rule_url(request, logged.rule, keys),
        "logged_urls": list(filter(None, urls)),
    }


def rule_url(request: HttpRequest, slug: str, keys: dict[str, int]) -> str:
    site = getattr(request, "current_app", "admin")
    return reverse("admin:django_ratelimiter_rule_change", args=[keys[slug]], current_app=site) if slug in keys else ""


def caller_url(request: HttpRequest, **named: str) -> str:
    """Return the URL of a caller's page; "" without the permission, or if there is no such page."""
    if not request.user.has_perm(SEES_TIERS):
        return ""
    try:
        page = reverse("admin:django_ratelimiter_caller", current_app=getattr(request, "current_app", "admin"))
    except NoReverseMatch:
        return ""
    return f"{page}?{urlencode(named)}"
