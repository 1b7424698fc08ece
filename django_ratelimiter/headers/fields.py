"""Decision to response fields: what a client is told of the limits that it met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import ceil
from typing import Final, NamedTuple

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

from ..conf import settings
from ..decision import Decision, Result
from ..limiter.templates import NEVER
from .policies import UntilMore, policy_name, quota_of, until_more

#: The attribute of a response that holds the decision whose fields it bears already. Only of refusals: what may be
#: cached is pickled.
SHOWS: Final = "_ratelimit_shows"
#: Which draft of the RateLimit fields is sent.
DRAFT: Final = 11
#: The fields of both families, all of which are about one client.
_NAMES_OF_FIELDS: Final = (
    "RateLimit",
    "RateLimit-Policy",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Soft-Exceeded",
)
#: What Django need not warn of: the refusal has been logged.
_LOGGED: Final = (429, 503)
#: Of how many limits it is remembered how they are shown; beyond that all are found anew.
MOST_REMEMBERED: Final = 1_000
#: Structured fields hold integers of at most 15 digits (RFC 9651).
_LARGEST_INTEGER: Final = 10**15 - 1


class _Names(NamedTuple):
    """What a draft calls the parameters of a limit and of its state."""

    quota: str
    unit: str
    window: str
    remaining: str
    seconds: str


_NAMES: Final = {11: _Names("q", "qu", "w", "r", "t")}
_OURS: Final = _NAMES[DRAFT]


class Policy(NamedTuple):
    """One limit as the RateLimit fields show it.

    window: seconds; `None` = it has no fixed length, or there is none.
    seconds: until there is more quota; `None` = never, for this cost, or not known.
    unit: what the quota counts; `None` = requests.
    """

    name: str
    quota: int
    window: float | Decimal | None
    remaining: int
    seconds: int | None
    unit: str | None = None


class _Shown(NamedTuple):
    """How a limit is shown, whatever its state: its name in quotes, its item of RateLimit-Policy, its quota.

    until_more: what finds the seconds on an allowed response. of: its rule, tier and limit. Held, they are the only
    objects with their `id`, by which this is found again.
    """

    name: str
    item: str
    quota: str
    until_more: UntilMore
    of: tuple[object, ...]


_remembered: Final[dict[tuple[int, int, int], _Shown]] = {}


def write_fields(request: HttpRequest, response: HttpResponseBase, decision: Decision) -> None:
    """Set the fields of the request's decision on any response to it, once.

    Where HEADERS has "expose", scripts of other origins are let read them.
    """
    if getattr(response, SHOWS, None) is decision:
        return
    fields, headers = response_fields(decision), response.headers
    for name, value in fields.items():
        headers[name] = value
    if fields and "expose" in settings.HEADERS:
        _expose(request, response, fields)
    if not decision.allowed and response.status_code >= 400:
        response.headers.setdefault("Cache-Control", "no-store")  # RFC 6585: a cache must not keep a 429
    if not decision.allowed and response.status_code in _LOGGED:
        response._has_been_logged = True  # type: ignore[attr-defined]  # what Django asks before it warns


def drop_fields(response: HttpResponseBase) -> None:
    """Drop the fields that a response bears already: Django's cache has kept it as another client got it."""
    if not hasattr(response, SHOWS):
        for name in _NAMES_OF_FIELDS:
            response.headers.pop(name, None)


def response_fields(decision: Decision) -> dict[str, str]:
    """The fields to set on a response, by name; on allowed responses too.

    Shows enforced limits only. A degraded decision shows no quota, as nobody knows what truly remains.
    """
    fields = {} if decision.degraded else _quota_fields(decision, settings.HEADERS)
    if not decision.allowed:
        seconds = retry_after(decision)
        if seconds is not None:
            fields["Retry-After"] = str(seconds)
    return fields


def _quota_fields(decision: Decision, families: Sequence[str]) -> dict[str, str]:
    """The fields of both families, as far as they are sent. In one go, for every response waits for it."""
    limits, states, exceeded = [], [], []
    legacy: dict[str, str] = {}
    for result in decision.results:
        rule, tier, limit, verdict, mode, _ = result
        if verdict is None or mode != "enforce":
            continue
        shown = _remembered.get((id(rule), id(tier), id(limit))) or _shown(result)
        remaining, reset = verdict.remaining, verdict.reset_after
        if verdict.charge.cost == NEVER:  # refused whatever it costs, for want of what the rule is split by
            remaining = 0
        seconds: int | None = None
        if not verdict.allowed:
            wait = verdict.retry_after
            seconds = None if wait is None else ceil(wait)
        elif decision.allowed:  # else Retry-After might be earlier than the time of a limit that does not refuse
            seconds = shown.until_more(remaining, reset)
        limits.append(shown.item)
        states.append(_state(shown.name, remaining, seconds, _OURS))
        if verdict.soft_exceeded:
            exceeded.append(shown.name)
        if result is decision.binding:
            reset_us = verdict.at_us + ceil(reset * 1_000_000)  # a moment by the engine's clock, in whole seconds
            legacy["X-RateLimit-Limit"] = shown.quota
            legacy["X-RateLimit-Remaining"] = str(remaining)
            legacy["X-RateLimit-Reset"] = str(-(-reset_us // 1_000_000))
    if exceeded:
        legacy["X-RateLimit-Soft-Exceeded"] = ",".join(exceeded)
    fields = _joined(limits, states) if "ratelimit" in families else {}
    return fields | legacy if "x-ratelimit" in families else fields


def ratelimit_fields(policies: Sequence[Policy], draft: int = DRAFT) -> dict[str, str]:
    """`RateLimit` and `RateLimit-Policy` as of this draft of draft-ietf-httpapi-ratelimit-headers.

    Nothing but this and what it calls knows this syntax, which is not final yet. w is left out where the window is not
    a whole number of seconds, or there is none, t where there will never be enough, or nobody knows when.
    """
    names = _NAMES[draft]
    return _joined(
        [_item(_quoted(one.name), one.quota, one.window, one.unit, names) for one in policies],
        [_state(_quoted(one.name), one.remaining, one.seconds, names) for one in policies],
    )


def _item(quoted: str, quota: int, window: float | Decimal | None, unit: str | None, names: _Names) -> str:
    item = f"{quoted};{names.quota}={min(quota, _LARGEST_INTEGER)}"
    if unit is not None:
        item += f";{names.unit}={_quoted(unit)}"
    return f"{item};{names.window}={int(window)}" if window is not None and window == int(window) else item


def _state(quoted: str, remaining: int, seconds: int | None, names: _Names) -> str:
    if remaining > _LARGEST_INTEGER:
        remaining = _LARGEST_INTEGER
    state = f"{quoted};{names.remaining}={remaining}"
    return state if seconds is None else f"{state};{names.seconds}={seconds}"


def _joined(limits: Sequence[str], states: Sequence[str]) -> dict[str, str]:
    return {"RateLimit-Policy": ",".join(limits), "RateLimit": ",".join(states)} if limits else {}


def _shown(result: Result) -> _Shown:
    """To be remembered, because a name may take longer to find than all the rest."""
    rule, tier, limit = of = result[:3]
    name = _quoted(policy_name(result))
    if len(_remembered) >= MOST_REMEMBERED:
        _remembered.clear()
    units, window, unit = quota_of(limit)
    shown = _Shown(name, _item(name, units, window, unit, _OURS), str(units), until_more(limit), of)
    _remembered[id(rule), id(tier), id(limit)] = shown
    return shown


def retry_after(decision: Decision) -> int | None:
    """Whole seconds until a refused request would pass, at least 1; `None` = never."""
    seconds = decision.retry_after
    return None if seconds is None else max(1, ceil(seconds))


def _quoted(name: str) -> str:
    """A string of RFC 9651: printable ASCII in quotes; anything else becomes "?"."""
    printable = "".join(char if " " <= char <= "~" else "?" for char in name)
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _expose(request: HttpRequest, response: HttpResponseBase, names: Iterable[str]) -> None:
    """Name these fields in Access-Control-Expose-Headers, beside those that are named there."""
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
