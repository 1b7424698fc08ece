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
from ..engine.base import Verdict
from ..engine.limits import Limit
from ..notices import soft_exceeded
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
    """How a limit is shown, whatever its state: its name in quotes, and its item of RateLimit-Policy.

    of: its rule, tier and limit. Held, they are the only objects with their `id`, by which this is found again.
    """

    name: str
    item: str
    of: tuple[object, ...]


_remembered: Final[dict[tuple[int, int, int], _Shown]] = {}


def write_fields(request: HttpRequest, response: HttpResponseBase, decision: Decision) -> None:
    """Set the fields of the request's decision on any response to it, once.

    Where HEADERS has "expose", scripts of other origins are let read them.
    """
    if getattr(response, SHOWS, None) is decision:
        return
    fields = response_fields(decision)
    for name, value in fields.items():
        response.headers[name] = value
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
    fields: dict[str, str] = {}
    if not decision.degraded:
        families, binding = settings.HEADERS, decision.binding
        if "ratelimit" in families:
            limits, states = [], []
            for result in decision.results:
                verdict = result.verdict
                if verdict is not None and result.mode == "enforce":
                    shown = _shown(result)
                    limits.append(shown.item)
                    states.append(_state(shown.name, _remaining(verdict), _seconds(verdict), _NAMES[DRAFT]))
            fields = _joined(limits, states)
        if "x-ratelimit" in families and binding and binding.verdict:
            fields |= _legacy_fields(binding.limit, binding.verdict)
        if "x-ratelimit" in families and (exceeded := soft_exceeded(decision)):
            fields["X-RateLimit-Soft-Exceeded"] = ",".join(_shown(result).name for result in exceeded)
    if not decision.allowed:
        seconds = retry_after(decision)
        if seconds is not None:
            fields["Retry-After"] = str(seconds)
    return fields


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
    left = "" if seconds is None else f";{names.seconds}={seconds}"
    return f"{quoted};{names.remaining}={min(remaining, _LARGEST_INTEGER)}{left}"


def _joined(limits: Sequence[str], states: Sequence[str]) -> dict[str, str]:
    return {"RateLimit-Policy": ",".join(limits), "RateLimit": ",".join(states)} if limits else {}


def _shown(result: Result) -> _Shown:
    """Remembered, because a name may take longer to find than all the rest."""
    rule, tier, limit = result.rule, result.tier, result.limit
    key = id(rule), id(tier), id(limit)
    shown = _remembered.get(key)
    if shown is None:
        name = _quoted(policy_name(result))
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        shown = _remembered[key] = _Shown(name, _item(name, limit.quota, limit.window, _NAMES[DRAFT]), result[:3])
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


def _remaining(verdict: Verdict) -> int:
    """Units that are left; none for whom the rule refuses whatever it costs, for want of what it is split by."""
    return 0 if verdict.charge.cost == NEVER else verdict.remaining


def _seconds(verdict: Verdict) -> int | None:
    """Whole seconds until there is more quota; `None` = never, for this cost."""
    wait = verdict.reset_after if verdict.allowed else verdict.retry_after
    return None if wait is None else ceil(wait)


def _legacy_fields(limit: Limit, verdict: Verdict) -> dict[str, str]:
    """The X-RateLimit trio. Reset is a moment in epoch seconds, by the engine's clock."""
    reset_us = verdict.at_us + ceil(verdict.reset_after * 1_000_000)
    return {
        "X-RateLimit-Limit": str(limit.quota),
        "X-RateLimit-Remaining": str(_remaining(verdict)),
        "X-RateLimit-Reset": str(-(-reset_us // 1_000_000)),
    }


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
