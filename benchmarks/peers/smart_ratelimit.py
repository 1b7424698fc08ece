"""django-smart-ratelimit, with its backend "redis" and its default algorithm, a log of requests.

Its documented interface is the decorator; so it is timed around a view that does nothing, and the fields that it
writes into the response are included.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django_smart_ratelimit import ratelimit

from ..contest import HOUR, QUOTA, Contestant
from ..site.requests import anonymous


def decision(url: str, seconds: int) -> Contestant:
    """As in its README."""

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(b"ok")

    decorated = ratelimit(key="ip", rate=f"{QUOTA}/{'h' if seconds == HOUR else 'm'}", block=True)(view)
    return Contestant(lambda request: decorated(request).status_code == 200, anonymous)


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[[HttpRequest], HttpResponse]:
    """Its decorator."""
    wrapped: Callable[[HttpRequest], HttpResponse] = ratelimit(key="ip", rate=f"{quota}/h", block=True)(view)
    return wrapped
