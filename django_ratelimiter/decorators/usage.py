"""Usage of a rate, as django-ratelimit returns it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from .. import ALL, limiter
from ..decision import Decision
from ..limiter.io import LOOP
from .arguments import Key, LimiterCall, Methods, Rate, RatelimitArguments


def get_usage(
    request: Any,
    group: str | None = None,
    fn: Callable[..., Any] | None = None,
    key: Key | None = None,
    rate: Rate = None,
    method: Methods = ALL,
    increment: bool = False,
) -> dict[str, Any] | None:
    """Return the usage of a rate: count, limit, should_limit, and time_left in seconds (-1 = not known).

    increment: charge one; else should_limit says whether the next request would be rejected. `None` = there is no
    limit.
    """
    call = _arguments(group, fn, key, rate, method).resolve(request, fn)
    if call.extra is None:
        return None
    if increment:
        return _usage(limiter.check(request, **call.limiter_kwargs(request)), call)
    return _usage(limiter.peek(request, extra=(call.extra,)), call)


async def aget_usage(
    request: Any,
    group: str | None = None,
    fn: Callable[..., Any] | None = None,
    key: Key | None = None,
    rate: Rate = None,
    method: Methods = ALL,
    increment: bool = False,
) -> dict[str, Any] | None:
    """Return the usage of a rate without blocking the event loop; see get_usage."""
    call = await LOOP.look_up(_arguments(group, fn, key, rate, method).resolve, request, fn)
    if call.extra is None:
        return None
    if increment:
        return _usage(await limiter.acheck(request, **call.limiter_kwargs(request)), call)
    return _usage(await limiter.apeek(request, extra=(call.extra,)), call)


def is_ratelimited(
    request: Any,
    group: str | None = None,
    fn: Callable[..., Any] | None = None,
    key: Key | None = None,
    rate: Rate = None,
    method: Methods = ALL,
    increment: bool = False,
) -> bool:
    """Return whether a request exceeds a rate, or would exceed it without `increment`. Arguments as for get_usage."""
    usage = get_usage(request, group, fn, key, rate, method, increment)
    return usage is not None and bool(usage["should_limit"])


async def ais_ratelimited(
    request: Any,
    group: str | None = None,
    fn: Callable[..., Any] | None = None,
    key: Key | None = None,
    rate: Rate = None,
    method: Methods = ALL,
    increment: bool = False,
) -> bool:
    """Return whether a request exceeds a rate, without blocking the event loop; see is_ratelimited."""
    usage = await aget_usage(request, group, fn, key, rate, method, increment)
    return usage is not None and bool(usage["should_limit"])


def _arguments(
    group: str | None, fn: Callable[..., Any] | None, key: Key | None, rate: Rate, method: Methods
) -> RatelimitArguments:
    if group is None and fn is None:
        raise ImproperlyConfigured("get_usage: name a group or a function.")
    decorators: tuple[RatelimitArguments, ...] = getattr(fn, "ratelimit_limits", ())
    asked = (group, key, rate)
    found = ((each.name, each.number) for each in decorators if (each.group, each.key, each.rate) == asked)
    name, number = next(found, ("", 0))
    return RatelimitArguments(group, key, rate, method, block=False, name=name, number=number)


def _usage(decision: Decision, call: LimiterCall) -> dict[str, Any] | None:
    result = call.result(decision)
    if result is not None and result.verdict is None and result.rule.during_outage.rejects:
        return {"count": 0, "limit": 0, "should_limit": True, "time_left": -1}  # the same as django-ratelimit returns
    if result is None or result.verdict is None:
        return None
    verdict, quota = result.verdict, 0 if result.rule.cost > result.limit.capacity else result.limit.quota
    wait = verdict.reset_after if verdict.allowed else verdict.retry_after
    return {
        "count": max(0, quota - verdict.remaining) if verdict.allowed else quota + 1,
        "limit": quota,
        "should_limit": not verdict.allowed,
        "time_left": ceil(result.limit.window or 0 if wait is None else wait),
    }
