"""Views that other limiters limit, and addresses for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from django.contrib import admin
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django_ratelimit.core import is_ratelimited
from django_ratelimit.decorators import ratelimit
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import (
    AnonRateThrottle,
    BaseThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
)
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimiter.decorators import ratelimit as our_ratelimit
from django_ratelimiter.throttling import RuleThrottle


def by_name(group: str, request: HttpRequest) -> str:
    return "one"


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


class OwnAnonThrottle(AnonRateThrottle):
    def get_cache_key(self, request: Any, view: Any) -> str:
        return "all"


class PropertyThrottle(UserRateThrottle):
    scope = "property"

    @property
    def rate(self) -> str:  # type: ignore[override]
        return "2/min"


class RatelessThrottle(UserRateThrottle):
    rate = None
    scope = "rateless"


class OddView(ListView):
    throttle_classes = (OwnAnonThrottle, PropertyThrottle, RatelessThrottle)


class ScopelessView(ListView):
    throttle_classes = (ScopedRateThrottle,)


@our_ratelimit("odd", key=lambda *_: "all", rate="5/m", method=["POST"], block=False)
def odd(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@our_ratelimit(key=by_name, rate="5/m")
def named(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@ratelimit(key="ip", rate="10/h")
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


class FormView(View):
    @method_decorator(ratelimit(key="user_or_ip", rate="100/h"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")


def by_own_code(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @wraps(view)
    def limited(request: HttpRequest) -> HttpResponse:
        is_ratelimited(request, group="own", key="ip", rate="5/m", increment=True)
        return view(request)

    return limited


@by_own_code
def own(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


class Called:
    @method_decorator(ratelimit(key="ip", rate="5/m"))
    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")


class Twice(View):
    get = post = by_own_code(lambda request: HttpResponse())  # type: ignore[assignment]


class Books(ViewSet):
    throttle_classes = ()
    throttle_scope = None

    def list(self, request: Any) -> Response:
        return Response("ok")

    @our_ratelimit(key="ip", rate="5/m")
    def create(self, request: Any) -> Response:
        return Response("ok")

    @action(detail=False, throttle_classes=[ScopedRateThrottle], throttle_scope="uploads")
    def upload(self, request: Any) -> Response:
        return Response("ok")

    @action(detail=False)
    @method_decorator(ratelimit(key="ip", rate="5/m"))
    def hidden(self, request: Any) -> Response:
        return Response("ok")

    @action(detail=False, throttle_classes=[RuleThrottle])
    def ruled(self, request: Any) -> Response:
        return Response("ok")


@api_view()
@our_ratelimit("mail")
def mail(request: Any) -> Response:
    return Response("ok")


router = SimpleRouter()
router.register("books", Books, basename="book")

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
    path("odd/throttles/", OddView.as_view(), name="odd-throttles"),
    path("scopeless/", ScopelessView.as_view(), name="scopeless"),
    path("odd/", odd, name="odd"),
    path("named/", named, name="named"),
    path("login/", login, name="login"),
    path("form/", FormView.as_view(), name="form"),
    path("own/", own, name="own"),
    path("partial/", partial(login), name="partial"),
    path("guarded/", login_required(login), name="guarded"),
    path("called/", Called(), name="called"),
    path("twice/", Twice.as_view(), name="twice"),
    path("mail/", mail, name="mail"),
    path("shop/", include(router.urls)),
    path("admin/", admin.site.urls),
]
