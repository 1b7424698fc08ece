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
    scope = "strict"


class OneThrottle(UserRateThrottle):
    rate = "2/day"
    scope = "shared"


class OtherThrottle(OneThrottle):
    rate = "4/day"


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


class SharedView(ListView):
    throttle_classes = (OneThrottle, OtherThrottle)


class ChoosingView(ListView):
    def get_throttles(self) -> Any:
        return [BurstThrottle()] if self.request.method == "POST" else super().get_throttles()


class StartedThrottle(UserRateThrottle):
    def __init__(self) -> None:
        self.rate = "2/min"
        super().__init__()


class StartedView(ListView):
    throttle_classes = (StartedThrottle,)


@ratelimit(key="ip", rate="10/h")
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


class FormView(View):
    @method_decorator(ratelimit(key="user_or_ip", rate="100/h"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")


urlpatterns = [
    path("api/things/", ListView.as_view(), name="things"),
    path("api/things/<int:pk>/", DetailView.as_view(), name="thing"),
    path("api/uploads/", UploadView.as_view(), name="uploads"),
    path("code/throttles/", CodeView.as_view(), name="code-throttles"),
    path("strict/", StrictView.as_view(), name="strict"),
    path("shared/", SharedView.as_view(), name="shared"),
    path("choosing/", ChoosingView.as_view(), name="choosing"),
    path("api/plain/", PlainView.as_view(), name="plain"),
    path("started/", StartedView.as_view(), name="started"),
    path("login/", login, name="login"),
    path("form/", FormView.as_view(), name="form"),
]
