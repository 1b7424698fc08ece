"""Views for the tests of explaining."""

from __future__ import annotations

from typing import ClassVar

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter import gateway
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.throttling import RuleThrottle
from tests.entry_points.urls import NameAuthentication


def hello(request: HttpRequest, **captured: object) -> HttpResponse:
    return HttpResponse("hello")


class Throttled(APIView):
    authentication_classes: ClassVar = [NameAuthentication]
    throttle_classes: ClassVar = [RuleThrottle]
    throttle_scope = "export"

    def get(self, request: Request) -> Response:
        return Response()


class Unthrottled(APIView):
    authentication_classes: ClassVar = [NameAuthentication]

    def get(self, request: Request) -> Response:
        return Response()


class Busy(Throttled):
    """A view that says 429 of itself."""

    def get(self, request: Request) -> Response:
        return Response({"detail": "Busy."}, status=429)


def tenant(request: HttpRequest) -> str | None:
    """An identity that the body holds."""
    return request.POST.get("tenant")


urlpatterns = [
    path("admin/", admin.site.urls),
    path("hello/", hello, name="hello"),
    path("nameless/", tenant),
    path("items/<int:item>/", hello, name="item"),
    path("api/", Throttled.as_view(), name="api"),
    path("busy/", Busy.as_view(), name="busy"),
    path("unthrottled/", Unthrottled.as_view(), name="unthrottled"),
    path("gateway/", gateway.view()),
    path("posts-scoped/", ratelimit("export", method="POST")(hello)),
    path("scoped/", ratelimit("export")(hello), name="scoped"),
    path("coded/", ratelimit(key="ip", rate="5/m")(hello), name="coded"),
]
