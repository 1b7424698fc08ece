"""django-ratelimit, on a django-redis cache: the only Redis cache that its own check lists as supported."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django_ratelimit.core import is_ratelimited
from django_ratelimit.decorators import ratelimit

from ..contest import QUOTA, Contestant
from ..site.requests import anonymous


def decision(url: str, seconds: int) -> Contestant:
    """The call that its decorator makes."""
    rate = f"{QUOTA}/{seconds}s"

    def check(request: HttpRequest) -> bool:
        return not is_ratelimited(request, group="benchmark", key="ip", rate=rate, increment=True)

    return Contestant(check, anonymous)


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[[HttpRequest], HttpResponse]:
    """Its decorator. The windows of callers end at different times, so none ends during a measurement of minutes."""
    wrapped: Callable[[HttpRequest], HttpResponse] = ratelimit(key="ip", rate=f"{quota}/365d")(view)
    return wrapped
