"""Views with the throttles that take the place of REST framework's own, and how often tests ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from django_ratelimiter.decision import NOTHING_TO_DECIDE
from django_ratelimiter.throttling import AnonRateThrottle, ScopedRateThrottle, UserRateThrottle

from .urls import NameAuthentication

rates = override_settings(
    REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"anon": "1/day", "user": "2/day", "export": "3/day"}}
)


def rated(rate: str, base: type = AnonRateThrottle, **attributes: Any) -> Any:
    """A throttle with a rate of its own."""
    return type("Rated", (base,), {"rate": rate, **attributes})


class View(APIView):
    authentication_classes: ClassVar = [NameAuthentication]

    def get(self, request: Request) -> Response:
        decision = getattr(request._request, "ratelimit", NOTHING_TO_DECIDE)
        return Response({"rules": [str(result.rule) for result in decision.results]})


factory = APIRequestFactory()


def view_of(*throttles: type, **attributes: Any) -> Callable[[HttpRequest], HttpResponse]:
    """A view with these throttles."""
    view: Any = type("Throttled", (View,), {"throttle_classes": throttles, **attributes}).as_view()
    return view  # type: ignore[no-any-return]


urlpatterns = [
    path("anon/", view_of(AnonRateThrottle)),
    path("user/", view_of(UserRateThrottle)),
    path("export/", view_of(ScopedRateThrottle, throttle_scope="export")),
    path("unscoped/", view_of(ScopedRateThrottle)),
]


def statuses(view: Callable[[HttpRequest], HttpResponse], times: int, **options: Any) -> list[int]:
    return [view(factory.get("/", **options)).status_code for _ in range(times)]


def gets(client: Client, url: str, times: int, **headers: str) -> list[int]:
    return [client.get(url, headers=headers).status_code for _ in range(times)]
