"""Decision to response fields: what a client is told of the limits that it met."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import ceil
from operator import attrgetter
from typing import Final, NamedTuple

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

from ..conf import settings
from ..decision import Decision, Result
from ..engine.limits import Limit
from ..stencils import NEVER

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
    window: str
    remaining: str
    seconds: str


_NAMES: Final = {11: _Names("q", "w", "r", "t")}
_OURS: Final = _NAMES[DRAFT]


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


class _Shown(NamedTuple):
    """How a limit is shown, whatever its state: its name in quotes, its item of RateLimit-Policy, its quota.

    of: its rule, tier and limit. Held, they are the only objects with their `id`, by which this is found again.
    """

    name: str
    item: str
    quota: str
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
        wait = reset if verdict.allowed else verdict.retry_after
        limits.append(shown.item)
        states.append(_state(shown.name, remaining, None if wait is None else ceil(wait), _OURS))
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
    a whole number of seconds, t where there will never be enough.
    """
    names = _NAMES[draft]
    return _joined(
        [_item(_quoted(name), quota, window, names) for name, quota, window, _, _ in policies],
        [_state(_quoted(name), remaining, seconds, names) for name, _, _, remaining, seconds in policies],
    )


def _item(quoted: str, quota: int, window: float | Decimal | None, names: _Names) -> str:
    whole = f";{names.window}={int(window)}" if window is not None and window == int(window) else ""
    return f"{quoted};{names.quota}={min(quota, _LARGEST_INTEGER)}{whole}"


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
    shown = _Shown(name, _item(name, limit.quota, limit.window, _OURS), str(limit.quota), of)
    _remembered[id(rule), id(tier), id(limit)] = shown
    return shown


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
