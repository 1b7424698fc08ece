"""The site whose log is replayed in these tests."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.throttling import RuleThrottle


class Given(BaseAuthentication):
    """Whom the trace says."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        user = request.given  # type: ignore[attr-defined]
        return (user, None) if user.is_authenticated else None


class Throttled(APIView):
    authentication_classes: ClassVar = [Given]
    throttle_classes: ClassVar = [RuleThrottle]
    throttle_scope = "api"

    def get(self, request: Request) -> Response:
        return Response(status=request.answer)  # type: ignore[attr-defined]

    post = get


def answer(request: HttpRequest, **captured: object) -> HttpResponse:
    return HttpResponse(status=request.answer)  # type: ignore[attr-defined]


urlpatterns = [
    path("plain/", answer, name="plain"),
    path("items/<int:item>/", answer, name="item"),
    path("search/", ratelimit("search")(answer), name="search"),
    path("api/", Throttled.as_view(), name="api"),
    path("static/file", answer, name="asset"),
]
