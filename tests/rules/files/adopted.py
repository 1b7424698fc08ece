"""Views that other limiters limit, and addresses for them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle
from rest_framework.views import APIView

#: As in that package, which is not installed here: what we look at is where its wrapper keeps the arguments.
_DECORATOR = """
from functools import wraps

def ratelimit(group=None, key=None, rate=None, method=None, block=True):
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


@ratelimit(key="ip", rate="10/30s", method=["POST"])
@ratelimit(key="post:email", rate="5/h", block=False)
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@ratelimit(key=lambda group, request: "x", rate="10/h")
def by_code(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@method_decorator(ratelimit(key="user_or_ip", rate="100/h", group="forms"), name="post")
class FormView(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")


urlpatterns = [
    path("api/things/", ListView.as_view(), name="things"),
    path("api/things/<int:pk>/", DetailView.as_view(), name="thing"),
    path("api/uploads/", UploadView.as_view(), name="uploads"),
    path("api/plain/", PlainView.as_view(), name="plain"),
    path("login/", login, name="login"),
    path("code/", by_code, name="code"),
    path("form/", FormView.as_view(), name="form"),
]
