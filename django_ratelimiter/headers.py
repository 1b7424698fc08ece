"""What a client is told: the response fields of a decision, and the body of a refusal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from math import ceil
from operator import attrgetter
from typing import Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .conf import django_setting, settings
from .decision import Decision, Result
from .engine.base import Verdict
from .engine.limits import Limit

PROBLEM_JSON: Final = "application/problem+json"
TEMPLATE: Final = "django_ratelimiter/refused.html"

_PROBLEM_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
#: Structured fields hold integers of at most 15 digits (RFC 9651).
_LARGEST_INTEGER: Final = 10**15 - 1
#: Longer Accept fields are not worth parsing for a refusal: 1 KB of them costs Django 5 ms.
_LONGEST_ACCEPT: Final = 500
#: Of equals the first is sent.
_BODIES: Final = {
    PROBLEM_JSON: "json",
    "application/json": "json",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "text",
}


class Policy(NamedTuple):
    """One limit as the RateLimit fields show it.

    window: seconds; `None` = a unit of the calendar, which has no fixed length.
    seconds: until there is more quota; `None` = never, for this cost.
    """

    name: str
    quota: int
    window: float | Decimal | None
    remaining: int
    seconds: int | None


def response_fields(decision: Decision) -> dict[str, str]:
    """The fields to set on a response, by name; on allowed responses too.

    Shows enforced limits only. A degraded decision shows no quota, as nobody knows what truly remains.
    """
    fields: dict[str, str] = {}
    if not decision.degraded:
        if "ratelimit" in settings.HEADERS:
            counted = [(result, result.verdict) for result in decision.results if result.mode == "enforce"]
            fields |= ratelimit_fields([_policy(result, verdict) for result, verdict in counted if verdict])
        if "x-ratelimit" in settings.HEADERS and decision.binding and decision.binding.verdict:
            fields |= _legacy_fields(decision.binding.limit, decision.binding.verdict)
    if not decision.allowed:
        seconds = retry_after(decision)
        if seconds is not None:
            fields["Retry-After"] = str(seconds)
    return fields


def ratelimit_fields(policies: Sequence[Policy]) -> dict[str, str]:
    """`RateLimit` and `RateLimit-Policy` as of draft-ietf-httpapi-ratelimit-headers-11.

    The only place that knows this syntax, which is not final yet. w is left out where the window is not a whole number
    of seconds, t where there will never be enough.
    """
    if not policies:
        return {}
    limits, states = [], []
    for name, quota, window, remaining, seconds in policies:
        quoted = _quoted(name)
        whole = f";w={int(window)}" if window is not None and window == int(window) else ""
        limits.append(f"{quoted};q={min(quota, _LARGEST_INTEGER)}{whole}")
        left = "" if seconds is None else f";t={seconds}"
        states.append(f"{quoted};r={min(remaining, _LARGEST_INTEGER)}{left}")
    return {"RateLimit-Policy": ",".join(limits), "RateLimit": ",".join(states)}


def policy_name(result: Result) -> str:
    """What a limit is called towards clients: its rule's slug, and where the rule has several limits, its window.

    Where that does not tell it from the others, the algorithm follows, and then what else is unlike the default.
    """
    name, limit = result.rule.slug, result.limit
    alike = [record.limit for record in result.rule.limits_for(result.tier)]
    for part in (_period, attrgetter("algorithm"), _variant):
        if len(alike) < 2:
            break
        own = part(limit)
        name = f"{name}-{own}" if own else name
        alike = [other for other in alike if part(other) == own]
    return name


def _period(limit: Limit) -> str:
    return limit.calendar or f"{Decimal(str(limit.window)).normalize():f}"


def _variant(limit: Limit) -> str:
    """What tells apart limits of one window and algorithm. Empty for the one that has every option's default."""
    words = [word for word in (limit.anchor, limit.refill) if word in ("first_request", "interval")]
    words += [str(number) for number in (limit.slots, limit.anchor_day) if number is not None]
    return "-".join([*words, *filter(None, [limit.timezone])])


def retry_after(decision: Decision) -> int | None:
    """Whole seconds until a refused request would pass, at least 1; `None` = never."""
    seconds = decision.retry_after
    return None if seconds is None else max(1, ceil(seconds))


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """The response to a refused request: 429, or 503 where a `closed` failure policy refused it.

    Problem JSON, HTML (from the template `django_ratelimiter/refused.html`) or plain text, by the Accept field.
    """
    status = 503 if decision.unavailable else 429
    title = _("Temporarily unavailable") if decision.unavailable else _("Too many requests")
    detail = refusal_detail(decision)
    body = _preferred_body(request)
    if body == "html":
        context = {
            "status": status,
            "title": title,
            "detail": detail,
            "retry_after": retry_after(decision),
            "stylesheet": _stylesheet(),
        }
        response = HttpResponse(render_to_string(TEMPLATE, context, request), status=status)
    elif body == "text":
        text = f"{title}\n{detail}\n"
        response = HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
    else:
        problem = json.dumps(problem_details(decision, status, title, detail))
        response = HttpResponse(problem, status=status, content_type=PROBLEM_JSON)
    for name, value in response_fields(decision).items():
        response.headers[name] = value
    response.headers["Cache-Control"] = "no-store"  # RFC 6585: a cache must not keep a 429
    patch_vary_headers(response, ["Accept"])
    return response


def problem_details(decision: Decision, status: int, title: str, detail: str) -> dict[str, object]:
    """The members of a problem document (RFC 9457)."""
    kind = "temporary-reduced-capacity" if decision.unavailable else "quota-exceeded"
    return {
        "type": _PROBLEM_TYPES + kind,
        "title": title,
        "status": status,
        "detail": detail,
        "violated-policies": list(dict.fromkeys(policy_name(result) for result in decision.refused_by)),
    }


def refusal_detail(decision: Decision) -> str:
    """A sentence or two for people: the refusing rule's own message, if it has one."""
    if decision.unavailable:
        return _("The service cannot check request limits at the moment. Please try again shortly.")
    if decision.binding and decision.binding.rule.message:
        return decision.binding.rule.message
    seconds = retry_after(decision)
    if seconds is None:
        return _("This request is not allowed by the limits that apply to it. Trying again will not help.")
    return _("You have sent more requests than allowed. Please try again in %(wait)s.") % {"wait": _wait(seconds)}


def _policy(result: Result, verdict: Verdict) -> Policy:
    wait = verdict.reset_after if verdict.allowed else verdict.retry_after
    seconds = None if wait is None else ceil(wait)
    return Policy(policy_name(result), result.limit.quota, result.limit.window, verdict.remaining, seconds)


def _legacy_fields(limit: Limit, verdict: Verdict) -> dict[str, str]:
    """The X-RateLimit trio. Reset is a moment in epoch seconds, by the engine's clock."""
    reset_us = verdict.at_us + ceil(verdict.reset_after * 1_000_000)
    return {
        "X-RateLimit-Limit": str(limit.quota),
        "X-RateLimit-Remaining": str(verdict.remaining),
        "X-RateLimit-Reset": str(-(-reset_us // 1_000_000)),
    }


def _quoted(name: str) -> str:
    """A string of RFC 9651: printable ASCII in quotes; anything else becomes "?"."""
    printable = "".join(char if " " <= char <= "~" else "?" for char in name)
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _preferred_body(request: HttpRequest) -> str:
    """json, html or text; json where the client has no wish, none that can be met, or none that can be read."""
    if len(request.META.get("HTTP_ACCEPT", "")) > _LONGEST_ACCEPT:
        return "json"
    try:
        preferred = request.get_preferred_type(list(_BODIES))
    except (ValueError, LookupError):  # Django's parser gives up on some malformed parameters
        return "json"
    return _BODIES[preferred or PROBLEM_JSON]


def _stylesheet() -> str | None:
    """The address of the page's stylesheet; `None` where the project does not serve it: the page can do without."""
    if not django_setting("STATIC_URL"):
        return None
    try:
        return static("django_ratelimiter/refused.css")
    except (ValueError, ImproperlyConfigured):  # a manifest, say, that collectstatic has not written yet
        return None


def _wait(seconds: int) -> str:
    """A wait in the unit that people would use, rounded up."""
    if seconds < 120:
        return ngettext("%(count)d second", "%(count)d seconds", seconds) % {"count": seconds}
    if seconds < 2 * 3600:
        minutes = -(-seconds // 60)
        return ngettext("%(count)d minute", "%(count)d minutes", minutes) % {"count": minutes}
    if seconds < 2 * 86400:
        hours = -(-seconds // 3600)
        return ngettext("%(count)d hour", "%(count)d hours", hours) % {"count": hours}
    days = -(-seconds // 86400)
    return ngettext("%(count)d day", "%(count)d days", days) % {"count": days}
