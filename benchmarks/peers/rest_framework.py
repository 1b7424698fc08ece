"""Django REST framework's own throttles, on Django's cache framework with Django's own Redis cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle
from rest_framework.views import APIView

from ..contest import HOUR, QUOTA, Contestant


def throttle(rate: str, alias: str = "builtin") -> type[AnonRateThrottle]:
    """Return a throttle by address, on this cache."""
    return type("Throttle", (AnonRateThrottle,), {"rate": rate, "cache": caches[alias]})


def decision(url: str, seconds: int) -> Contestant:
    """A throttle made for each request, as in DRF's views."""
    from ..site.requests import anonymous  # sets Django up

    made, view = throttle(f"{QUOTA}/{'h' if seconds == HOUR else 'm'}"), APIView()

    def check(request: Request) -> bool:
        return bool(made().allow_request(request, view))

    return Contestant(check, lambda caller: Request(anonymous(caller)))


class Unlimited(APIView):
    """A DRF view without a limit, for comparison."""

    authentication_classes = (SessionAuthentication,)

    def get(self, request: Any) -> Response:
        return Response("ok")


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[..., HttpResponse]:
    """A DRF view with a throttle on django-redis, which makes no client for each call."""
    return Unlimited.as_view(throttle_classes=[throttle(f"{quota}/h", "default")])
