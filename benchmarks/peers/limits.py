"""limits, with its storage for Redis. `hit` only returns yes or no; the remaining quota needs a second call."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from limits import RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

from ..contest import HOUR, QUOTA, Contestant, address
from ..site.settings import REDIS_URL


def fixed(url: str, seconds: int) -> Contestant:
    """A fixed window, the cheapest of its strategies."""
    limiter = FixedWindowRateLimiter(storage_from_string(url))
    limit = (RateLimitItemPerHour if seconds == HOUR else RateLimitItemPerMinute)(QUOTA)
    return Contestant(lambda key: limiter.hit(limit, "fixed", key), address)


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[[HttpRequest], HttpResponse]:
    """A view under a fixed window."""
    limiter, limit = FixedWindowRateLimiter(storage_from_string(REDIS_URL)), RateLimitItemPerHour(quota)

    def wrapped(request: HttpRequest) -> HttpResponse:
        if not limiter.hit(limit, request.META["REMOTE_ADDR"]):
            return HttpResponse(status=429)
        return view(request)

    return wrapped
