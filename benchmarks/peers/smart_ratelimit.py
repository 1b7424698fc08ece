"""django-smart-ratelimit, with its backend "redis": its default algorithm, a log of requests, and its token bucket.

Its documented interface is the decorator; so it is timed around a view that does nothing, and the fields that it
writes into the response are included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django_smart_ratelimit import ratelimit

from ..contest import HOUR, QUOTA, Contestant
from ..site.requests import anonymous


def decision(url: str, seconds: int) -> Contestant:
    """As in its README."""
    return _decorated(seconds)


def bucket(url: str, seconds: int) -> Contestant:
    """With the algorithm that stores least."""
    return _decorated(seconds, algorithm="token_bucket")


def _decorated(seconds: int, **options: Any) -> Contestant:
    period = "h" if seconds == HOUR else "m"

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(b"ok")

    decorated = ratelimit(key="ip", rate=f"{QUOTA}/{period}", block=True, **options)(view)
    return Contestant("", "peer", lambda request: decorated(request).status_code == 200, anonymous)


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[[HttpRequest], HttpResponse]:
    """Its decorator."""
    wrapped: Callable[[HttpRequest], HttpResponse] = ratelimit(key="ip", rate=f"{quota}/h", block=True)(view)
    return wrapped
