"""Django REST framework's own throttles, on Django's cache framework with Django's own Redis cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle
from rest_framework.views import APIView

from ..contest import HOUR, QUOTA, Contestant
from ..site.requests import anonymous


class Throttle(AnonRateThrottle):
    """By address, with the same quota as all others."""

    cache = caches["builtin"]
    rate = f"{QUOTA}/h"


def decision(url: str, seconds: int) -> Contestant:
    """A throttle made for each request, as in DRF's views."""
    throttle = type("Throttle", (Throttle,), {"rate": f"{QUOTA}/{'h' if seconds == HOUR else 'm'}"})
    view = APIView()

    def check(request: Request) -> bool:
        return bool(throttle().allow_request(request, view))

    return Contestant("", "peer", check, lambda caller: Request(anonymous(caller)))


class Unlimited(APIView):
    """A DRF view without a limit, for comparison."""

    authentication_classes = ()

    def get(self, request: Any) -> Response:
        return Response("ok")


def unlimited(view: Callable[[HttpRequest], HttpResponse], _quota: int) -> Callable[..., HttpResponse]:
    """A DRF view without a throttle."""
    return Unlimited.as_view()


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[..., HttpResponse]:
    """A DRF view with one."""
    throttle = type("Throttle", (Throttle,), {"rate": f"{quota}/h"})
    return Unlimited.as_view(throttle_classes=[throttle])
