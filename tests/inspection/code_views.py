"""Views with limits in their code: rates of decorators, and throttles of the REST framework, ours and its own."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view, authentication_classes, renderer_classes, throttle_classes
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle as Foreign
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.throttling import AnonRateThrottle, RuleThrottle, ScopedRateThrottle, UserRateThrottle
from tests.entry_points.urls import NameAuthentication


def status_of(request: Any) -> int:
    return int(request.GET.get("status", 200))


def by_org(group: str, request: Any) -> str:
    return str(request.META.get("HTTP_X_ORG", ""))


@ratelimit(key="ip", rate="2/m")
@ratelimit(key="user_or_ip", rate="3/h", method="POST")
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=status_of(request))


@ratelimit("export")
@ratelimit(key=by_org, rate=lambda group, request: (2, 60) if by_org(group, request) else None)
def mixed(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=status_of(request))


@ratelimit(key="ip", rate="1/m", block=False)
def unblocked(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=status_of(request))


@method_decorator(ratelimit(key="ip", rate="2/m"), name="dispatch")
@method_decorator(ratelimit(key="header:X-Org", rate="1/m"), name="post")
class Dispatched(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=status_of(request))

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=status_of(request))


class Known(APIView):
    authentication_classes: ClassVar[Any] = [NameAuthentication]
    renderer_classes: ClassVar[Any] = [JSONRenderer]

    def get(self, request: Request) -> Response:
        return Response({}, status=status_of(request))

    post = get


class Dropped(Known):
    throttle_classes: ClassVar[Any] = [AnonRateThrottle, UserRateThrottle]


class Scoped(Known):
    throttle_classes: ClassVar[Any] = [RuleThrottle, ScopedRateThrottle]
    throttle_scope = "export"


@ratelimit(key="user", rate="2/m")
class Checked(Known):
    throttle_classes: ClassVar[Any] = [AnonRateThrottle]

    @ratelimit(key="ip", rate="1/m")
    def post(self, request: Request) -> Response:
        return Response({}, status=status_of(request))


class Things(ViewSet):
    authentication_classes: ClassVar[Any] = [NameAuthentication]
    renderer_classes: ClassVar[Any] = [JSONRenderer]
    throttle_classes: ClassVar[Any] = [UserRateThrottle]

    @ratelimit(key="user_or_ip", rate="1/m")
    def list(self, request: Request) -> Response:
        return Response({}, status=status_of(request))


@api_view(["GET", "POST"])
@authentication_classes([NameAuthentication])
@renderer_classes([JSONRenderer])
@throttle_classes([UserRateThrottle])
@ratelimit(key="ip", rate="2/m")
def within(request: Request) -> Response:
    return Response({}, status=status_of(request))


class Foreigner(Known):
    throttle_classes: ClassVar[Any] = [Foreign, UserRateThrottle]


#: One throttle for all requests.
SHARED = RuleThrottle()


class Sharing(Known):
    throttle_classes: ClassVar[Any] = [lambda: SHARED]
    throttle_scope = "shared"


RATES = {"anon": "2/min", "user": "2/min", "export": "3/min"}

urlpatterns = [
    path("function/", function),
    path("mixed/", mixed),
    path("unblocked/", unblocked),
    path("dispatched/", Dispatched.as_view()),
    path("dropped/", Dropped.as_view()),
    path("drf-scoped/", Scoped.as_view()),
    path("checked/", Checked.as_view()),
    path("things/", Things.as_view({"get": "list"})),
    path("within/", within),
    path("foreign/", Foreigner.as_view()),
    path("sharing/", Sharing.as_view()),
]
