"""throttled-py, with its store for Redis: its default algorithm, and the one that stores least."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from throttled import RateLimiterType, Throttled
from throttled.store import RedisStore

from ..contest import HOUR, QUOTA, Contestant, address
from ..site.settings import REDIS_URL


def bucket(url: str, seconds: int) -> Contestant:
    """A token bucket."""
    return _limiting(url, seconds, RateLimiterType.TOKEN_BUCKET.value)


def fixed(url: str, seconds: int) -> Contestant:
    """A fixed window."""
    return _limiting(url, seconds, RateLimiterType.FIXED_WINDOW.value)


def _limiting(url: str, seconds: int, algorithm: str) -> Contestant:
    quota = f"{QUOTA}/{'h' if seconds == HOUR else 'm'}"
    throttle = Throttled(using=algorithm, quota=quota, store=RedisStore(server=url))
    return Contestant("", "peer", lambda key: not throttle.limit(key).limited, address)


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[[HttpRequest], HttpResponse]:
    """A view under a token bucket."""
    throttle = Throttled(
        using=RateLimiterType.TOKEN_BUCKET.value, quota=f"{quota}/h", store=RedisStore(server=REDIS_URL)
    )

    def wrapped(request: HttpRequest) -> HttpResponse:
        if throttle.limit(request.META["REMOTE_ADDR"]).limited:
            return HttpResponse(status=429)
        return view(request)

    return wrapped
