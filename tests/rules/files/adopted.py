"""Views that other limiters limit, and addresses for them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.response import Response
from rest_framework.throttling import (
    AnonRateThrottle,
    BaseThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
)
from rest_framework.views import APIView

#: As in that package, which is not installed here: what we look at is where its wrapper keeps the arguments.
_DECORATOR = """
from functools import wraps

ALL = (None,)

def ratelimit(group=None, key=None, rate=None, method=ALL, block=True):
    def decorator(fn):
        @wraps(fn)
        def _wrapped(request, *args, **kw):
            (group, key, rate, method, block)
            return fn(request, *args, **kw)
        return _wrapped
    return decorator
"""
_module: dict[str, Any] = {"__name__": "django_ratelimit.decorators"}
exec(_DECORATOR, _module)
ratelimit: Any = _module["ratelimit"]

#: The same of django-smart-ratelimit. It has its own names for what it has read already.
_SMART = """
from functools import wraps

def rate_limit(key, rate=None, block=True, algorithm=None, cost=1, shadow=False, allow_list=None, skip_if=None):
    def decorator(func):
        _rate, _allow_list = rate, allow_list
        @wraps(func)
        def wrapper(*args, **kwargs):
            (key, _rate, block, algorithm, cost, shadow, _allow_list, skip_if)
            return func(*args, **kwargs)
        return wrapper
    return decorator

def ratelimit_batch(checks, block=True):
    def decorator(func):
        @wraps(func)
        def wrapper(*args, **kwargs):
            (checks, block)
            return func(*args, **kwargs)
        return wrapper
    return decorator
"""
_smart: dict[str, Any] = {"__name__": "django_smart_ratelimit.decorator"}
exec(_SMART, _smart)
rate_limit: Any = _smart["rate_limit"]
ratelimit_batch: Any = _smart["ratelimit_batch"]


def ten_an_hour(group: str, request: HttpRequest) -> str:
    return "10/h"


class BurstThrottle(UserRateThrottle):
    scope = "burst"


class TenantThrottle(SimpleRateThrottle):
    rate = "5/min"
    scope = "tenant"

    def get_cache_key(self, request: Any, view: Any) -> str:
        return "one"


class PostThrottle(UserRateThrottle):
    scope = "posts"
    rate = "5/min"

    def allow_request(self, request: Any, view: Any) -> bool:
        return request.method == "GET" or super().allow_request(request, view)


class ProxyThrottle(AnonRateThrottle):
    scope = "proxied"
    rate = "5/min"

    def get_ident(self, request: Any) -> str:
        return str(request.headers.get("Cf-Connecting-Ip"))


class LoadThrottle(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return True


class StrictThrottle(UserRateThrottle):
    rate = "2/month"
    scope = "burst"


class ListView(APIView):
    throttle_classes = (AnonRateThrottle, BurstThrottle)

    def get(self, request: Any) -> Response:
        return Response("ok")


class DetailView(ListView):
    throttle_classes = (*ListView.throttle_classes, TenantThrottle)


class UploadView(ListView):
    throttle_classes = (ScopedRateThrottle,)
    throttle_scope = "uploads"


class PlainView(ListView):
    throttle_classes = ()


class CodeView(ListView):
    throttle_classes = (PostThrottle, ProxyThrottle, LoadThrottle)


class StrictView(ListView):
    throttle_classes = (StrictThrottle,)


class ChoosingView(ListView):
    def get_throttles(self) -> Any:
        return [BurstThrottle()] if self.request.method == "POST" else super().get_throttles()


@ratelimit(key="ip", rate="10/30s", method=["POST"])
@ratelimit(key="post:email", rate="5/h", block=False)
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@ratelimit(key=lambda group, request: "x", rate="10/h")
def by_code(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@ratelimit(key="ip", rate="10/h")
def twice(request: HttpRequest, pk: int = 0) -> HttpResponse:
    return HttpResponse("hello")


@ratelimit(key="ip", rate=ten_an_hour)
def rate_by_code(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@ratelimit(key="ip", rate=None)
def without_rate(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def _smartly(**arguments: Any) -> Any:
    @rate_limit(**arguments)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    return view


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@ratelimit_batch([{"rate": "5/m", "key": "ip"}, {"rate": "100/h", "key": "user", "group": "all"}])
def batch(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


class InheritedView(View):
    @method_decorator(ratelimit(key="ip", rate="10/h"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")


class FirstView(InheritedView):
    pass


class SecondView(InheritedView):
    pass


@method_decorator(ratelimit(key="user_or_ip", rate="100/h", group="forms"), name="post")
class FormView(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")


urlpatterns = [
    path("api/things/", ListView.as_view(), name="things"),
    path("api/things/<int:pk>/", DetailView.as_view(), name="thing"),
    path("api/uploads/", UploadView.as_view(), name="uploads"),
    path("code/throttles/", CodeView.as_view(), name="code-throttles"),
    path("strict/", StrictView.as_view(), name="strict"),
    path("choosing/", ChoosingView.as_view(), name="choosing"),
    path("api/plain/", PlainView.as_view(), name="plain"),
    path("login/", login, name="login"),
    path("code/", by_code, name="code"),
    path("form/", FormView.as_view(), name="form"),
    path("twice/", twice, name="twice"),
    path("twice/<int:pk>/", twice, name="twice-one"),
    path("rate-by-code/", rate_by_code, name="rate-by-code"),
    path("without-rate/", without_rate, name="without-rate"),
    path("smart/", _smartly(key="header:x-key", rate="5/m", allow_list=["10.0.0.0/8"], cost=len), name="smart"),
    path("smart/leaky/", _smartly(key="user:{user.id}", rate="5/m", algorithm="leaky_bucket"), name="smart-leaky"),
    path("smart/fixed/", _smartly(key="ip", rate="5/m", algorithm="fixed_window"), name="smart-fixed"),
    path("smart/other/", _smartly(key="ip", rate="6/m", algorithm="fixed_window"), name="smart-other"),
    path("first-form/", FirstView.as_view(), name="first-form"),
    path("second-form/", SecondView.as_view(), name="second-form"),
    path("first/", ratelimit(key="ip", rate="9/h", method="GET")(hello), name="first-hello"),
    path("second/", ratelimit(key="ip", rate="9/h", method="GET")(hello), name="second-hello"),
    path("batch/", batch, name="batch"),
]
