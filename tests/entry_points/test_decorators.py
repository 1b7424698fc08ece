"""`@ratelimit` at functions, methods and classes, synchronous or not, by scope or by a rate in code."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, modify_settings
from django.urls import path, resolve
from django.utils.decorators import method_decorator
from django.views.generic import View
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter import limiter
from django_ratelimiter.decorators import Ratelimited, get_usage, ratelimit
from django_ratelimiter.limiter.charges import InlineRule
from django_ratelimiter.models import AccessEntry
from django_ratelimiter.rules import inline

from ..making import MakeRule
from .test_decorator_rates import asked, limited, noting
from .urls import NameAuthentication

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__), pytest.mark.usefixtures("clock")]

factory = RequestFactory()
twice = ratelimit(key="ip", rate="2/d")


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


class Callable:
    """A view like Django's `Feed`: an object with a method."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class NativePlain(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


@twice
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@twice
async def native(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@twice
class Class(Plain): ...


@twice
class NativeClass(NativePlain): ...


class Method(View):
    @twice
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


class NativeMethod(View):
    @method_decorator(twice)
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")


@method_decorator(twice, name="dispatch")
class Dispatched(Plain): ...


@method_decorator(twice, name="dispatch")
class NativeDispatched(NativePlain): ...


@ratelimit(key="user", rate="2/d")
class Framework(APIView):
    authentication_classes: ClassVar = [NameAuthentication]

    def get(self, request: Request) -> Response:
        return Response("ok")


class FrameworkMethod(APIView):
    @twice
    def get(self, request: Request) -> Response:
        return Response("ok")


@api_view(["GET"])
@twice
def framework_function(request: Request) -> Response:
    return Response("ok")


@ratelimit("mail", cost=2)
async def scoped_natively(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@ratelimit(key="user", rate="1/d")
async def by_user_natively(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@twice
def forbidden(request: HttpRequest) -> HttpResponse:
    raise PermissionDenied


VIEWS: dict[str, Any] = {
    "function": function,
    "native": native,
    "class": Class.as_view(),
    "native-class": NativeClass.as_view(),
    "method": Method.as_view(),
    "native-method": NativeMethod.as_view(),
    "dispatched": Dispatched.as_view(),
    "native-dispatched": NativeDispatched.as_view(),
    "as-view": twice(Plain.as_view()),
    "callable": twice(Callable()),
    "framework": Framework.as_view(),
    "framework-method": FrameworkMethod.as_view(),
    "framework-function": framework_function,
}
urlpatterns = [path(f"{name}/", view) for name, view in VIEWS.items()] + [
    path("scoped/", ratelimit("mail")(plain)),
    path("scoped-natively/", scoped_natively),
    path("by-user-natively/", by_user_natively),
    path("forbidden/", forbidden),
]


@pytest.mark.parametrize("name", VIEWS)
def test_every_kind_of_view_is_limited(either_client: Client, name: str) -> None:
    answers = [either_client.get(f"/{name}/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0]["RateLimit"].endswith(";r=1;t=86400")
    assert answers[2]["Retry-After"] == "86400"
    assert ";r=0;t=86400" in answers[2]["RateLimit"]
    assert either_client.get(f"/{name}/", REMOTE_ADDR="203.0.113.9").status_code == 200


@pytest.mark.parametrize("name", VIEWS)
def test_a_decorated_view_is_asynchronous_if_it_was(name: str) -> None:
    assert iscoroutinefunction(VIEWS[name]) is name.startswith("native")


def test_callable_object_keeps_the_name_that_rules_use() -> None:
    assert resolve("/callable/").view_name == f"{__name__}.Callable"


def test_a_rejection_is_the_limiters_page(client: Client) -> None:
    for _ in range(3):
        answer = client.get("/function/", headers={"Accept": "application/problem+json"})
    assert answer.json()["violated-policies"] == ["code:tests.entry_points.test_decorators.function"]


@modify_settings(MIDDLEWARE={"remove": "django_ratelimiter.middleware.RateLimitMiddleware"})
def test_without_the_middleware_it_is_forbidden(client: Client) -> None:
    assert [client.get("/function/").status_code for _ in range(3)] == [200, 200, 403]
    assert [client.get("/framework/").status_code for _ in range(3)] == [200, 200, 429]


def test_what_else_is_forbidden_stays_so(client: Client) -> None:
    assert [client.get("/forbidden/").status_code for _ in range(3)] == [403, 403, 429]


@pytest.mark.parametrize("name", ["function", "native", "framework"])
def test_whom_an_access_entry_denies_is_forbidden(client: Client, name: str) -> None:
    AccessEntry.objects.create(action="deny", kind="ip", value="127.0.0.1")
    with modify_settings(MIDDLEWARE={"remove": "django_ratelimiter.middleware.RateLimitMiddleware"}):
        assert client.get(f"/{name}/").status_code == 403
    assert client.get(f"/{name}/").status_code == 403
    with pytest.raises(Ratelimited):
        noting()(*asked(1))


def test_frameworks_views_know_their_user(client: Client) -> None:
    for name in ("ann", "bob"):
        User.objects.create(username=name)
        answers = [client.get("/framework/", headers={"X-Name": name}).status_code for _ in range(3)]
        assert answers == [200, 200, 429]


def test_a_user_is_read_off_the_event_loop(async_client: AsyncClient) -> None:
    get = async_to_sync(async_client.get)
    statuses = [get("/by-user-natively/").status_code for _ in range(2)]
    async_client.force_login(User.objects.create(username="ann"))
    assert statuses == [get("/by-user-natively/").status_code for _ in range(2)] == [200, 429]


def test_of_stacked_rates_a_rejection_spends_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})

    @ratelimit(key="ip", rate="5/d")
    @ratelimit(key="ip", rate="1/h")
    def view(request: HttpRequest) -> None:
        pass

    view(*asked(1))
    for request in asked(9):
        with pytest.raises(Ratelimited):
            view(request)
    usage = get_usage(*asked(1), fn=view, key="ip", rate="1/h")
    assert usage == {"count": 2, "limit": 1, "should_limit": True, "time_left": 3_600}
    [outer] = [rule for rule in inline.registered() if rule.limits[None][0].limit.quota == 5]
    verdict = limiter.check(*asked(1), extra=[InlineRule(outer, "ip:127.0.0.1")]).results[0].verdict
    assert verdict is not None
    assert verdict.remaining == 3


def test_a_rate_of_a_view_and_a_rule_are_all_or_nothing(client: Client, make_rule: MakeRule) -> None:
    make_rule("per-ip", quota=5, partition_by=["ip"])
    assert [client.get("/function/").status_code for _ in range(4)] == [200, 200, 429, 429]
    assert '"per-ip";r=3' in client.get("/function/")["RateLimit"]


def test_rules_are_shown_before_they_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})

    @ratelimit(key="ip", rate="100/h")
    def view(request: HttpRequest) -> None:
        pass

    class Other(View):
        get = method_decorator(ratelimit(key="ip", rate="7/h"))(Plain.get)

    [rule] = inline.registered()
    assert rule.partition_by == ("ip",)
    assert (rule.mode, rule.limits[None][0].limit.quota) == ("enforce", 100)


def test_a_view_without_a_request() -> None:
    with pytest.raises(ImproperlyConfigured):
        twice(lambda: None)()


@pytest.mark.parametrize("scope", [None, "rows"])
def test_a_cost_that_the_response_tells(make_rule: MakeRule, either_way: Any, scope: str | None) -> None:
    make_rule("rows", quota=10, scope="rows")
    chosen: dict[str, Any] = {"group": scope} if scope else {"key": "ip", "rate": "10/d"}
    view = either_way(ratelimit(**chosen, cost_after=len), lambda request, number: [0] * number)
    for number in (4, 0, 5, 9):
        assert len(view(factory.get("/"), number)) == number
    with pytest.raises(Ratelimited):
        view(factory.get("/"), 1)


def test_a_cost_that_the_response_tells_rejects_nobody_that_is_not_blocked() -> None:
    view = ratelimit(key="ip", rate="5/d", block=False, cost_after=lambda rows: 5)(lambda request: request.limited)
    assert [view(*asked(1)) for _ in range(2)] == [False, True]
    with pytest.raises(Ratelimited):
        ratelimit(key="ip", rate="0/d", cost_after=len)(plain)(*asked(1))


@pytest.mark.parametrize(
    ("returned", "logged"),
    [
        (KeyError("s3cret"), f"KeyError at {__file__}:"),
        ("5", "must be a whole number, not '5'"),
        (2.5, "must be a whole number"),
        (-1, "must be 0 or more"),
    ],
)
def test_a_cost_that_cannot_be_known_is_the_usual_one(
    either_way: Any, returned: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    def cost(response: Any) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    view = either_way(ratelimit(key="ip", rate="3/d", cost=2, cost_after=cost), lambda request: "done")
    assert view(factory.get("/")) == "done"
    [record] = caplog.records
    assert logged in record.getMessage()
    assert "2 units are charged" in record.getMessage()
    assert "s3cret" not in caplog.text
    with pytest.raises(Ratelimited):
        view(factory.get("/"))


def test_a_group_is_shared_and_views_are_not() -> None:
    assert limited(noting(), *asked(1)) + limited(noting(), *asked(1)) == [False, True]
    views = [twice(type(name, (Plain,), {}).as_view()) for name in ("One", "Two")]
    assert [view(*asked(1)).status_code for view in views * 2] == [200] * 4


def test_functions_within_api_view_are_not_shared_nor_are_limits_around_and_within() -> None:
    """The qualified name of the class that `@api_view` makes is the same for every function."""

    def one(request: Request) -> Response:
        return Response("ok")

    views = [twice(api_view(["GET"])(function)) for function in (one, plain)]
    assert [view(*asked(1)).status_code for view in views * 2] == [200] * 4
    assert views[0].ratelimit_limits[0].resolve(*asked(1), views[0]).extra.rule.slug == f"code:{__name__}.one"
    around = twice(api_view(["GET"])(twice(lambda request: Response("ok"))))
    assert [around(*asked(1)).status_code for _ in range(2)] == [200] * 2
