"""Views behind the entry points: Django's, DRF's, and what goes wrong in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import ClassVar

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter import limiter
from django_ratelimiter.throttling import RuleThrottle


class NameAuthentication(BaseAuthentication):
    """Takes the user's name from a header; rejects unknown names."""

    def authenticate(self, request: Request) -> tuple[object, None] | None:
        from django.contrib.auth.models import User

        name = request.META.get("HTTP_X_NAME")
        if name is None:
            return None
        user = User.objects.filter(username=name).first()
        if user is None:
            raise AuthenticationFailed("unknown")
        return user, None

    def authenticate_header(self, request: Request) -> str:
        return "Name"


class Throttled(APIView):
    authentication_classes: ClassVar = [NameAuthentication]
    throttle_classes: ClassVar = [RuleThrottle]

    def get(self, request: Request, **captured: object) -> Response:
        return Response({"user": str(request.user)})


class Scoped(Throttled):
    throttle_scope = "uploads"


def plain(request: HttpRequest, **captured: object) -> JsonResponse:
    return JsonResponse({"ok": True})


def scoped(request: HttpRequest) -> JsonResponse:
    decision = limiter.check(request, scope="mail", cost=3)
    return JsonResponse({"allowed": decision.allowed, "rules": [str(result.rule) for result in decision.results]})


async def native(request: HttpRequest, **captured: object) -> HttpResponse:
    return HttpResponse("native")


def broken(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("broken on purpose")


async def broken_natively(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("broken on purpose")


def streamed(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        yield from (b"one", b"two", b"three")

    return StreamingHttpResponse(parts())


async def streamed_natively(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one", b"two", b"three"):
            yield part

    return StreamingHttpResponse(parts())


def tagged(request: HttpRequest) -> HttpResponse:
    return HttpResponse("tagged", headers={"ETag": '"1"'})


urlpatterns = [
    path("admin/", admin.site.urls),
    path("plain/", plain, name="plain"),
    path("health/", plain),
    path("health/records/", plain),
    path("healthz", plain),
    path("native/", native),
    path("broken/", broken),
    path("broken/natively/", broken_natively),
    path("streamed/", streamed),
    path("streamed/natively/", streamed_natively),
    path("tagged/", tagged),
    path("items/<int:pk>/", plain, name="item"),
    path("scoped/", scoped, name="scoped"),
    path("throttled/", Throttled.as_view(), name="throttled"),
    path("throttled/scoped/", Scoped.as_view(), name="throttled-scoped"),
]
