"""limits, with its storage for Redis. `hit` only returns yes or no; the remaining quota needs a second call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from limits import RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

from ..contest import HOUR, QUOTA, Contestant, address
from ..site.settings import REDIS_URL


def fixed(url: str, seconds: int) -> Contestant:
    """A fixed window, the cheapest of its strategies."""
    return _hitting(FixedWindowRateLimiter(storage_from_string(url)), seconds)


def sliding(url: str, seconds: int) -> Contestant:
    """A sliding window of two counters."""
    return _hitting(SlidingWindowCounterRateLimiter(storage_from_string(url)), seconds)


def _hitting(limiter: Any, seconds: int) -> Contestant:
    limit = (RateLimitItemPerHour if seconds == HOUR else RateLimitItemPerMinute)(QUOTA)
    strategy = type(limiter).__name__
    return Contestant("", "peer", lambda key: limiter.hit(limit, strategy, key), address)


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[[HttpRequest], HttpResponse]:
    """A view under a fixed window."""
    limiter, limit = FixedWindowRateLimiter(storage_from_string(REDIS_URL)), RateLimitItemPerHour(quota)

    def wrapped(request: HttpRequest) -> HttpResponse:
        if not limiter.hit(limit, request.META["REMOTE_ADDR"]):
            return HttpResponse(status=429)
        return view(request)

    return wrapped
