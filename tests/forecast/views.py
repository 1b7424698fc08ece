"""The site whose logs are judged in these tests, with the ways in which code asks for rules of a scope."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import api_view, throttle_classes
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimiter import limiter
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.throttling import RuleThrottle


def answer(request: HttpRequest, **captured: object) -> HttpResponse:
    return HttpResponse()


class Handled(View):
    @method_decorator(ratelimit("search"))
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@method_decorator(ratelimit("search"), name="dispatch")
class Dispatched(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@ratelimit("search")
class Decorated(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Throttled(APIView):
    throttle_classes: ClassVar = [RuleThrottle]
    throttle_scope = "search"

    def get(self, request: Any) -> Response:
        return Response()


@ratelimit("search")
class DecoratedApi(Throttled):
    throttle_classes: ClassVar = []
    throttle_scope = None  # type: ignore[assignment]


@api_view(["GET"])
@throttle_classes([])
@ratelimit("search")
def decorated_api_view(request: Any) -> Response:
    return Response()


class Set(ViewSet):
    @method_decorator(ratelimit("search"))
    def list(self, request: Any) -> Response:
        return Response()


def own(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def wrapper(request: HttpRequest, **captured: object) -> Any:
        return view(request, **captured)

    return wrapper


#: The code says which scope is asked for.
SEEN: dict[str, Any] = {
    "function": ratelimit("search")(answer),
    "method": ratelimit("search", method="GET")(answer),
    "within": own(ratelimit("search")(answer)),
    "handled": Handled.as_view(),
    "dispatched": Dispatched.as_view(),
    "decorated": Decorated.as_view(),
    "throttled": Throttled.as_view(),
    "decorated-api": DecoratedApi.as_view(),
    "api-view": decorated_api_view,
    "set": Set.as_view({"get": "list"}),
    "chosen": Throttled.as_view(throttle_scope="search"),
    "partial": partial(ratelimit("search")(answer)),
}


def in_body(request: HttpRequest) -> HttpResponse:
    limiter.check(request, scope="search")
    return HttpResponse()


def by_import(request: HttpRequest) -> HttpResponse:
    from django_ratelimiter.limiter import check

    check(request, scope="search")
    return HttpResponse()


def by_helper(request: HttpRequest) -> HttpResponse:
    return in_body(request)


@ratelimit("search")
def helper(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def by_decorated_helper(request: HttpRequest) -> HttpResponse:
    return helper(request)


def asking(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def wrapper(request: HttpRequest) -> Any:
        limiter.check(request, scope="search")
        return view(request)

    return wrapper


class InMethod(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return self.found(request)

    def found(self, request: HttpRequest) -> HttpResponse:
        with limiter.charge(request, scope="search"):
            return HttpResponse()


class Callable_:
    def __call__(self, request: HttpRequest) -> HttpResponse:
        return in_body(request)


class OwnThrottle(RuleThrottle):
    def asks(self, request: Any, view: Any) -> Any:
        return "search", ()


class ByOwnThrottle(APIView):
    throttle_classes: ClassVar = [OwnThrottle]


class ByChosenThrottles(APIView):
    def get_throttles(self) -> list[Any]:
        return [RuleThrottle()]


class ByProperty(APIView):
    throttle_classes: ClassVar = [RuleThrottle]

    @property
    def throttle_scope(self) -> str:
        return "search"


#: Only running the code would say it.
UNSEEN: dict[str, Any] = {
    "body": in_body,
    "import": by_import,
    "helper": by_helper,
    "decorated-helper": by_decorated_helper,
    "own-decorator": asking(answer),
    "in-method": InMethod.as_view(),
    "callable": Callable_(),
    "own-throttle": ByOwnThrottle.as_view(),
    "chosen-throttles": ByChosenThrottles.as_view(),
    "property": ByProperty.as_view(),
    "within-partial": partial(in_body),
}

urlpatterns = [
    path("plain/", answer, name="plain"),
    path("items/<int:item>/", answer, name="item"),
    path("search/", ratelimit("search")(answer), name="search"),
    path("costly/", ratelimit("costly", cost=3)(answer)),
    path("computed/", ratelimit("computed", cost=lambda request: 3)(answer)),
    path("after/", ratelimit("after", cost_after=lambda response: 3)(answer)),
]
