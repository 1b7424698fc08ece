"""From a decision to response fields: the limits that a client sees."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Iterator, Sequence
from math import ceil, inf
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase, ResponseHeaders
from django.utils.cache import patch_vary_headers

from ..conf import settings
from ..decision import Decision, Owner, Result
from ..engine.base import NEVER, Charge
from ..rules.records import UNREAD
from . import syntax
from .syntax import ShownLimit, fitting, quoted, shown_limit

#: The fields that describe one limit, or the same limits. If the project sets one of them, none is sent.
_LEGACY: Final = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
_TOGETHER: Final = ({"ratelimit", "ratelimit-policy"}, _LEGACY)
#: RFC 6585: a cache must not store a 429.
_NO_STORE: Final = ("Cache-Control", "no-store")


#: A field's name and value, as Django's headers store them under the lower-case name.
Field = tuple[str, str]
#: Limits, `None` = it is not shown; their items of RateLimit-Policy, and the whole field.
_Shown = tuple[Sequence[ShownLimit | None], list[str], Field]
#: What `_state_of` returns, for each limit.
_Columns = Sequence[Sequence[int]]


def write_fields(request: HttpRequest, response: HttpResponseBase, decision: Decision) -> None:
    """Set the fields of the request's decision on any response to it, once. Fields that the project has set stay.

    If HEADERS has "expose", scripts of other origins may read them.
    """
    if not decision.allowed and getattr(response, "_ratelimit_shows", None) is decision:
        return
    families = settings.HEADERS
    if decision.allowed and not families:
        return
    fields, headers = _fields_of(decision, families), response.headers
    if not fields.keys().isdisjoint(store := headers._store):
        theirs = {name for name, _ in _others(headers)}
        theirs.update(*[names for names in _TOGETHER if not names.isdisjoint(theirs)])
        fields = {name: field for name, field in fields.items() if name not in theirs}
    headers._ratelimit = fields  # type: ignore[attr-defined]
    store.update(fields)  # lines of ASCII: Django calls ten functions for each field to check that
    if "expose" in families:
        _expose(request, response, [name for name, _ in fields.values()])
    if decision.allowed:
        return
    if response.status_code >= 400:
        store.setdefault("cache-control", _NO_STORE)
    if response.status_code in (429, 503):  # the rejection is logged already: Django need not warn
        response._has_been_logged = True  # type: ignore[attr-defined]


def _others(headers: ResponseHeaders) -> Iterator[tuple[str, Field]]:
    """Yield the fields that `write_fields` has not set, by their lower-case names."""
    ours = getattr(headers, "_ratelimit", {})
    return ((name, field) for name, field in headers._store.items() if ours.get(name) is not field)


def _pickled(headers: ResponseHeaders) -> tuple[Any, ...]:
    """Return how to pickle headers: without our fields. Caches store responses so, and the fields are one client's."""
    return ResponseHeaders, (dict(field for _, field in _others(headers)),)


copyreg.pickle(ResponseHeaders, _pickled)


def response_fields(decision: Decision) -> dict[str, str]:
    """Return the fields to set on a response, by name, also for allowed responses.

    Only enforced limits are shown. A degraded decision shows no quota, because the remaining quota is not known.
    """
    return dict(_fields_of(decision, settings.HEADERS).values())


def _fields_of(decision: Decision, families: Sequence[str]) -> dict[str, Field]:
    """Return these fields by their lower-case names."""
    fields: dict[str, Field] = {}
    rejection = None if decision.allowed else decision.rejection
    if rejection and rejection.seconds is not None:
        fields["retry-after"] = "Retry-After", str(rejection.seconds)
    if not decision.degraded:
        answer = None if decision.has_consequences else decision.answer  # `None` if results were read
        if answer is None:
            counted = [each for each in decision.results if each.verdict and each.mode == "enforce"]
            shown = _with_policy([_shown(each, each.verdict.charge) for each in counted if each.verdict])
            columns: _Columns = [*zip(*map(_state_of, counted), strict=True)] or [()] * 4
            if "x-ratelimit" in families and (exceeded := decision.soft_exceeded):
                shares = [each.verdict.remaining / each.limit.capacity for each in exceeded if each.verdict]
                [names] = fitting(shares, [quoted(shown_limit(each).name) for each in exceeded])
                fields["x-ratelimit-soft-exceeded"] = "X-RateLimit-Soft-Exceeded", ",".join(names)
        else:
            call: Any = answer.charges.template
            at_us, remaining, waits, resets, _ = answer.states
            shown = call.shown or _limits_of(call)
            columns = (at_us,) * len(waits), remaining, waits, resets
        _add_quotas(fields, shown, columns, families, decision.allowed)
    elif UNREAD in decision.slugs and "x-ratelimit" in families:
        fields["x-ratelimit-degraded"] = "X-RateLimit-Degraded", UNREAD
    if rejection and rejection.reference and "x-ratelimit" in families:
        fields["x-ratelimit-reference"] = "X-RateLimit-Reference", rejection.reference
    return fields


def _limits_of(call: Any) -> _Shown:
    """Return the limits of a call as they are shown; they are kept there. `None` = not enforced."""
    limits: list[Any] = [  # plain tuples are unpacked faster than named ones
        tuple(_shown(owner, each.charge)) if owner.rule.mode == "enforce" else None
        for owner, each in zip(call.owners, call.templates, strict=True)
    ]
    call.shown = found = _with_policy(limits)
    return found


def _with_policy(limits: Sequence[ShownLimit | None]) -> _Shown:
    items = [item for _, item, *_ in filter(None, limits)]
    return limits, items, ("RateLimit-Policy", ",".join(items))


def _shown(owner: Owner | Result, charge: Charge) -> ShownLimit:
    shown = shown_limit(owner)
    # A request without the value that the rule is split by is rejected at any cost.
    return shown._replace(most=0) if charge.cost == NEVER else shown


def _state_of(result: Result) -> tuple[int, int, int, int]:
    """Return the engine's time, the remaining units, the wait, and the time to the reset, as `CounterStates` does."""
    verdict: Any = result.verdict
    wait = 0
    if not verdict.allowed:
        wait = -1 if verdict.retry_after is None else max(1, round(verdict.retry_after * 1_000_000))
    return verdict.at_us, verdict.remaining, wait, round(verdict.reset_after * 1_000_000)


def _add_quotas(
    fields: dict[str, Field], shown: _Shown, columns: _Columns, families: Sequence[str], allowed: bool
) -> None:
    """Add the fields of both families that are sent. In one loop, because every response waits for it."""
    limits, items, field = shown
    times, remaining, waits, resets = columns
    states, tightness, least = [], [], inf
    for place, limit in enumerate(limits):  # not by `zip`, which takes longer
        if limit is None:
            continue
        _, _, state, quota, capacity, most, until_more, _ = limit
        left, wait, seconds = remaining[place], waits[place], None
        left = left if left <= most else most
        if wait:
            tight, seconds = (-1.0 - wait / 1_000_000, ceil(wait / 1_000_000)) if wait > 0 else (-inf, None)
        else:
            tight = left / capacity
            if allowed:  # else Retry-After might be earlier than the time of a limit that does not reject
                reset = resets[place] / 1_000_000
                seconds = until_more(left, reset) if until_more else ceil(reset) or None
        states.append(f"{state}{left}" if seconds is None else f"{state}{left};t={seconds}")
        tightness.append(tight)
        if tight < least:
            least, legacy = tight, (quota, left, times[place] + resets[place])
    if not states:
        return
    if "ratelimit" in families:
        text = ",".join(states)
        if len(field[1]) + len(text) > syntax.MAX_LENGTH:
            fit, text = map(",".join, fitting(tightness, items, states))
            field = field[0], fit
        fields["ratelimit-policy"], fields["ratelimit"] = field, ("RateLimit", text)
    if "x-ratelimit" in families:
        quota, left, reset_at = legacy
        fields["x-ratelimit-limit"] = "X-RateLimit-Limit", quota
        fields["x-ratelimit-remaining"] = "X-RateLimit-Remaining", str(left)
        fields["x-ratelimit-reset"] = "X-RateLimit-Reset", str(ceil(reset_at / 1_000_000))  # in whole seconds


def retry_after(decision: Decision) -> int | None:
    """Return the whole seconds until a rejected request would be allowed, at least 1; `None` = never."""
    return decision.rejection.seconds


def _expose(request: HttpRequest, response: HttpResponseBase, names: Iterable[str]) -> None:
    """Add these fields to Access-Control-Expose-Headers."""
    patch_vary_headers(response, ["Origin"])
    if "Origin" not in request.headers:
        return
    exposed: dict[str, str] = {}
    for name in (*response.headers.get("Access-Control-Expose-Headers", "").split(","), *names):
        exposed.setdefault(name.strip().lower(), name.strip())
    response.headers["Access-Control-Expose-Headers"] = ", ".join(filter(None, exposed.values()))
