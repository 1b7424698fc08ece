"""From a decision to response fields: the limits that a client sees."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase, ResponseHeaders
from django.utils.cache import patch_vary_headers

from ..conf import settings
from ..decision import Decision, tightness_of
from ..engine.base import NEVER
from .syntax import OURS, fitting, joined, shown_limit, state_of
from .templates import RefusalFacts, allowed_fields, rejection_fields

#: The attribute of a response with the decision that its fields show. Only set on rejections: cacheable responses are
#: pickled.
SHOWS: Final = "_ratelimit_shows"
#: The fields of both families, which all concern a single client.
_NAMES_OF_FIELDS: Final = {
    "RateLimit",
    "RateLimit-Policy",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Soft-Exceeded",
    "X-RateLimit-Reference",
}
#: RFC 6585: a cache must not store a 429.
_NO_STORE: Final = ("Cache-Control", "no-store")
#: Django need not log a warning: the rejection is logged already.
_LOGGED: Final = (429, 503)


def write_fields(
    request: HttpRequest, response: HttpResponseBase, decision: Decision, facts: RefusalFacts | None = None
) -> None:
    """Set the fields of the request's decision on any response to it, once.

    If HEADERS has "expose", scripts of other origins may read them. facts: of the rejection, if they are known:
    then the response was just made from them.
    """
    if facts is None and getattr(response, SHOWS, None) is decision:
        return
    families = settings.HEADERS
    if decision.allowed and not families:
        return
    headers = response.headers
    headers._have_ratelimit = True  # type: ignore[attr-defined]  # read by `_pickled`
    answer, kept = decision.answer, headers._store
    if answer is not None and decision.is_plain and not answer.is_made:
        fields = allowed_fields(answer, families) if decision.allowed else rejection_fields(answer, families, facts)
    else:
        fields = {name.lower(): (name, value) for name, value in response_fields(decision).items()}
    # In one step: Django calls ten functions for each field to check that it is one line of ASCII. All of these are.
    kept.update(fields)
    if "expose" in families:
        _expose(request, response, [name for name, _ in fields.values()])
    if decision.allowed:
        return
    if response.status_code >= 400:
        kept.setdefault("cache-control", _NO_STORE)
    if response.status_code in _LOGGED:
        response._has_been_logged = True  # type: ignore[attr-defined]  # Django checks it before it warns


def _pickled(headers: ResponseHeaders) -> tuple[Any, ...]:
    """Return how to pickle headers: without our fields. Caches store responses so, and the fields are one client's."""
    left_out = _NAMES_OF_FIELDS if hasattr(headers, "_have_ratelimit") else ()
    return ResponseHeaders, ({name: value for name, value in headers.items() if name not in left_out},)


copyreg.pickle(ResponseHeaders, _pickled)


def response_fields(decision: Decision) -> dict[str, str]:
    """Return the fields to set on a response, by name, also for allowed responses.

    Only enforced limits are shown. A degraded decision shows no quota, because the remaining quota is not known.
    """
    answer = decision.answer
    if answer is not None and decision.is_plain and not answer.is_made:
        fields_of = allowed_fields if decision.allowed else rejection_fields
        return dict(fields_of(answer, settings.HEADERS).values())
    fields: dict[str, str] = {}
    if not decision.allowed and (seconds := retry_after(decision)) is not None:
        fields["Retry-After"] = str(seconds)
    if not decision.degraded:
        fields |= _quota_fields(decision, settings.HEADERS)
    elif not decision.allowed:
        binding = decision.binding
        if binding and binding.reference and "x-ratelimit" in settings.HEADERS:
            fields["X-RateLimit-Reference"] = binding.reference
    return fields


def _quota_fields(decision: Decision, families: Sequence[str]) -> dict[str, str]:
    """Return the fields of both families that are sent. In one function, because every response waits for it."""
    limits, states, exceeded = [], [], []
    legacy: dict[str, str] = {}
    for result in decision.results:
        rule, tier, limit, verdict, mode, _ = result
        if verdict is None or mode != "enforce":
            continue
        shown = shown_limit(rule, tier, limit)
        remaining, reset = verdict.remaining, verdict.reset_after
        if verdict.charge.cost == NEVER:  # rejected at any cost, because the value that the rule is split by is missing
            remaining = 0
        seconds: int | None = None
        if not verdict.allowed:
            wait = verdict.retry_after
            seconds = None if wait is None else ceil(wait)
        elif decision.allowed:  # else Retry-After might be earlier than the time of a limit that does not reject
            seconds = shown.until_more(remaining, reset)
        limits.append(shown.item)
        states.append(state_of(shown.name, remaining, seconds, OURS))
        if verdict.soft_exceeded:
            exceeded.append(shown.name)
        if result is decision.binding:
            reset_us = verdict.at_us + round(reset * 1_000_000)  # a time by the engine's clock, in whole seconds
            legacy["X-RateLimit-Limit"] = shown.quota
            legacy["X-RateLimit-Remaining"] = str(remaining)
            legacy["X-RateLimit-Reset"] = str(-(-reset_us // 1_000_000))
    if not decision.allowed and decision.binding is not None and (reference := decision.binding.reference):
        legacy["X-RateLimit-Reference"] = reference
    if exceeded:
        [names] = fitting(_tightness(decision, only_soft=True), exceeded)
        legacy["X-RateLimit-Soft-Exceeded"] = ",".join(names)
    fields = joined(limits, states, partial(_tightness, decision)) if "ratelimit" in families else {}
    return fields | legacy if "x-ratelimit" in families else fields


def _tightness(decision: Decision, *, only_soft: bool = False) -> list[float]:
    """Return the tightness of each limit that is shown. only_soft: of those whose soft quota is exceeded."""
    return [
        tightness_of(result)
        for result in decision.results
        if result.verdict is not None and result.mode == "enforce" and (result.verdict.soft_exceeded or not only_soft)
    ]


def retry_after(decision: Decision) -> int | None:
    """Return the whole seconds until a rejected request would be allowed, at least 1; `None` = never."""
    seconds = decision.retry_after
    return None if seconds is None else max(1, ceil(seconds))


def _expose(request: HttpRequest, response: HttpResponseBase, names: Iterable[str]) -> None:
    """Add these fields to Access-Control-Expose-Headers."""
    patch_vary_headers(response, ["Origin"])
    if "Origin" not in request.headers:
        return
    exposed = [
        name.strip() for name in response.headers.get("Access-Control-Expose-Headers", "").split(",") if name.strip()
    ]
    known = {name.lower() for name in exposed}
    response.headers["Access-Control-Expose-Headers"] = ", ".join(
        [*exposed, *(name for name in names if name.lower() not in known)]
    )
