"""The whole request path: the identity, the rules that match, their tiers, the engine, and the decision."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest

from ..contest import HOUR, Contestant
from ..site.requests import anonymous
from ..site.requests import known as signed_in

# The import of requests has set Django up.
from django_ratelimiter import limiter  # isort: skip
from django_ratelimiter.decision import Decision  # isort: skip


def _checking(argument: Callable[[int], HttpRequest]) -> Contestant:
    return Contestant(lambda request: admitted(limiter.check(request)), argument)


def admitted(decision: Decision) -> bool:
    """Return whether Redis has allowed it. Raises RuntimeError if Redis was not called."""
    if decision.degraded:
        raise RuntimeError("It was decided without Redis.")
    return decision.allowed


def one(url: str, seconds: int) -> Contestant:
    """One rule, by address."""
    view = "one" if seconds == HOUR else "minute"
    return _checking(lambda caller: anonymous(caller, view))


def three(url: str, seconds: int) -> Contestant:
    """Three rules of three algorithms, two of them by address."""
    return _checking(lambda caller: anonymous(caller, "three"))


def known(url: str, seconds: int) -> Contestant:
    """Three rules by user, API key and address."""
    return _checking(signed_in)


def awaited_three(url: str, seconds: int) -> Contestant:
    """Three rules, on an event loop."""

    async def check(request: HttpRequest) -> bool:
        return admitted(await limiter.acheck(request))

    return Contestant(check, lambda caller: anonymous(caller, "three"), awaited=True)
