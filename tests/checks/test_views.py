"""The system checks of views of the REST framework: rules by user that are never met, addresses that clients choose."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import override_settings
from django.urls import get_resolver, include, path, re_path, resolve
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.http import require_safe
from rest_framework.authentication import SessionAuthentication, TokenAuthentication
from rest_framework.decorators import action, api_view, authentication_classes, throttle_classes
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import AnonRateThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimiter import gateway
from django_ratelimiter.checks.views import (
    check_addresses,
    check_estimates,
    check_gateways,
    check_open_gateways,
    check_rates,
    check_views,
)
from django_ratelimiter.conf import settings
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.rules.routes import all_views
from django_ratelimiter.throttling import RuleThrottle, ScopedRateThrottle, UserRateThrottle

from ..making import make_rule
from ..pages import PAGES
from ..urls import say_hello
from .test_checks import ids


class Plain(APIView):
    """Finds its user by token, after the middleware."""

    authentication_classes = (TokenAuthentication, SessionAuthentication)
    throttle_classes = (AnonRateThrottle,)


class Throttled(Plain):
    throttle_classes = (RuleThrottle,)


class BySession(Plain):
    authentication_classes = (SessionAuthentication,)


class Open(Plain):
    authentication_classes = ()


class Choosing(Plain):
    def get_throttles(self) -> list[Any]:
        return [RuleThrottle()]


class Scoped(Plain):
    throttle_scope = "export"


class Set(ViewSet):
    authentication_classes = (TokenAuthentication,)
    throttle_classes = (RuleThrottle,)

    def list(self, request: Any) -> None: ...

    @action(detail=False, throttle_classes=())
    def bare(self, request: Any) -> None: ...


@api_view(["GET"])
@authentication_classes([TokenAuthentication])
@throttle_classes([])
def function(request: Any) -> None: ...


router = SimpleRouter()
router.register("set", Set, basename="set")

urlpatterns = [
    path("plain/<int:pk>/", Plain.as_view(), name="plain"),
    path("throttled/", Throttled.as_view(), name="throttled"),
    path("given/", Plain.as_view(throttle_classes=[RuleThrottle]), name="given"),
    path("session/", BySession.as_view()),
    path("open/", Open.as_view()),
    path("choosing/", Choosing.as_view()),
    path("ordinary/", say_hello),
    path("scoped/", Scoped.as_view()),
    path("function/", function),
    path("api/", include(([path("", include(router.urls)), re_path(r"^old/(\d+)/$", Plain.as_view())], "api"), "api")),
]


def unmet_views() -> dict[str, str]:
    """For each view that the check names: the rules it says are never met."""
    with override_settings(ROOT_URLCONF=__name__):
        messages = check_views()
    assert set(ids(messages)) <= {"W004"}
    return {m.msg.split(" ")[0].removeprefix(f"{__name__}."): m.msg.rpartition(": ")[2].rstrip(".") for m in messages}


@pytest.mark.django_db
def test_views_whose_user_rules_are_never_met() -> None:
    assert unmet_views() == {}
    make_rule("everybody", partition_by=["ip"])
    assert unmet_views() == {}
    make_rule("users", partition_by=["user"])
    assert unmet_views() == {"Plain": "users", "Scoped": "users", "Set": "users", "function": "users"}
    make_rule("customers", partition_by=["customer"])
    for own, rules in (("user.account", "customers, users"), ("api_key.account", "users"), (None, "users")):
        with override_settings(RATELIMITER={"CUSTOMER": own}):
            assert unmet_views()["Plain"] == rules


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "views"),
    [
        ({"path_kind": "prefix", "path": "/plain/"}, {"Plain"}),
        ({"path_kind": "prefix", "path": "/api/"}, {"Plain", "Set"}),
        ({"path_kind": "prefix", "path": "/elsewhere/"}, set()),
        ({"path_kind": "prefix", "path": "/plain/5"}, set()),
        ({"path_kind": "exact", "path": "/plain/5/"}, {"Plain"}),
        ({"path_kind": "exact", "path": "/plain/"}, set()),
        ({"path_kind": "exact", "path": "/throttled/"}, set()),
        ({"path_kind": "route", "path": "plain/<int:pk>/"}, {"Plain"}),
        ({"path_kind": "route", "path": r"api/old/(\d+)/$"}, {"Plain"}),
        ({"view_name": "plain"}, {"Plain"}),
        ({"view_name": "api:set-bare"}, {"Set"}),
        ({"view_name": "api:set-list"}, set()),
        ({"scope": "export"}, {"Scoped"}),
        ({"mode": "shadow", "view_name": "plain"}, {"Plain"}),
        ({"mode": "off"}, set()),
    ],
)
def test_views_are_named_only_for_rules_that_they_would_meet(fields: dict[str, Any], views: set[str]) -> None:
    make_rule("users", partition_by=["ip", "user"], **fields)
    assert set(unmet_views()) == views


def test_the_route_that_the_check_works_out_is_the_one_of_a_request() -> None:
    found = {(match.route, match.view_name) for match in all_views(get_resolver(__name__))}
    for address in ("/plain/5/", "/api/set/", "/api/set/bare/", "/api/old/7/", "/scoped/"):
        match = resolve(address, __name__)
        assert (match.route, match.view_name) in found


class ByAddress(UserRateThrottle):
    rate = "5/min"


class ByField(ByAddress):
    def get_ident(self, request: Any) -> str:
        return str(request.data.get("email"))


class Address(APIView):
    throttle_classes = (ByAddress, ByField)


def believing(*views: Any) -> list[str]:
    """The throttles that the check names for these views."""
    with override_settings(ROOT_URLCONF=tuple(path(f"{number}/", view) for number, view in enumerate(views))):
        messages = check_addresses()
    assert ids(messages) in ([], ["W011"])
    return [name.strip(" .").rpartition(".")[2] for m in messages for name in m.msg.rpartition(":")[2].split(",")]


def test_throttles_that_take_each_clients_word_for_its_address() -> None:
    assert believing(Plain.as_view(), Throttled.as_view(), say_hello) == []
    assert believing(Address.as_view(), Plain.as_view(throttle_classes=[ScopedRateThrottle])) == [
        "ScopedRateThrottle",
        "ByAddress",
    ]


@pytest.mark.parametrize(
    "known",
    [
        {"REST_FRAMEWORK": {"NUM_PROXIES": 0}},
        {"RATELIMITER": {"TRUSTED_PROXIES": ["10.0.0.0/8"]}},
        {"RATELIMITER": {"TRUSTED_PROXIES": 1}},
        {"RATELIMITER": {"TRUSTED_PROXIES": "nonsense"}},
    ],
)
def test_where_proxies_are_known_nobody_is_believed(known: dict[str, Any]) -> None:
    with override_settings(**known):
        assert believing(Address.as_view()) == []


def faults(rates: dict[str, Any], *views: Any, **framework: Any) -> list[str]:
    """What the check says of the rates of these views' throttles."""
    urls = tuple(path(f"{number}/", view) for number, view in enumerate(views))
    framework |= {"DEFAULT_THROTTLE_RATES": rates}
    with override_settings(ROOT_URLCONF=urls, REST_FRAMEWORK=framework):
        messages = check_rates()
    assert set(ids(messages)) <= {"E009"}
    return [message.msg for message in messages]


class ByUser(APIView):
    throttle_classes = (UserRateThrottle,)


class Fortnightly(UserRateThrottle):
    def parse_rate(self, rate: str | None) -> tuple[int, int]:
        return 1, 14 * 86_400


class FromDatabase(UserRateThrottle):
    def get_rate(self) -> str:
        raise AssertionError("asked for, and may need a database")


def test_rates_that_would_fail_at_each_request() -> None:
    assert faults({"user": "10/min"}, ByUser.as_view(), say_hello) == []
    assert faults({"user": None}, ByUser.as_view()) == []
    [fault] = faults({"user": "10/month"}, ByUser.as_view(), ByUser.as_view())
    assert "UserRateThrottle: '10/month' is not a throttle rate. Write a number and a period" in fault
    [fault] = faults({}, ByUser.as_view())
    assert "No default throttle rate set for 'user' scope" in fault
    [fault] = faults({"user": 10}, ByUser.as_view())
    assert "UserRateThrottle" in fault


def test_rates_by_the_scope_of_the_view() -> None:
    scoped = Scoped.as_view(throttle_classes=[ScopedRateThrottle])
    assert faults({"export": "10/min", "import": "10/month"}, scoped) == []
    [fault] = faults({"export": "10/month"}, scoped, Plain.as_view(throttle_classes=[ScopedRateThrottle]))
    assert "'10/month'" in fault


def test_rates_of_the_frameworks_own_and_of_subclasses_are_theirs() -> None:
    rates = {"anon": "10/month", "user": "1/fortnight"}
    own = [Plain.as_view(throttle_classes=[each]) for each in (AnonRateThrottle, Fortnightly, FromDatabase)]
    assert faults(rates, *own) == []


def test_rates_of_classes_that_are_named_in_the_settings_only() -> None:
    named = ["django_ratelimiter.throttling.AnonRateThrottle", "no.such.Throttle"]
    [fault] = faults({"anon": "10/month"}, DEFAULT_THROTTLE_CLASSES=named)
    assert "AnonRateThrottle: '10/month'" in fault


def late(**given: Any) -> Any:
    return ratelimit(key="ip", rate="9/d", cost_after=len, **given)


@pytest.mark.parametrize(
    ("view", "fires"),
    [
        (late()(say_hello), True),
        (ratelimit("rows", cost_after=len)(say_hello), True),
        (late()(type("Page", (View,), {})).as_view(), True),
        (type("Page", (View,), {"get": method_decorator(late())(say_hello)}).as_view(), True),
        (late()(type("Api", (Plain,), {})).as_view(), True),
        (late(cost=1)(say_hello), False),
        (ratelimit(key="ip", rate="9/d")(say_hello), False),
        (say_hello, False),
    ],
)
def test_cost_after_response_without_estimate_is_reported(view: Any, fires: bool) -> None:
    with override_settings(ROOT_URLCONF=(path("rows/", view),)):
        messages = check_estimates()
    assert ids(messages) == ["W026"] * fires
    assert not fires or messages[0].msg.endswith(": /rows/.")


ASKED = path("gateway/", include([path("nginx/", require_safe(gateway.view())), path("envoy", gateway.aview())]))


@pytest.mark.parametrize(
    ("trusted", "urls", "says"),
    [
        ([], [ASKED], "E010: each gateway that asks /gateway/nginx/, /gateway/envoy gets a 403"),
        *[
            (each, [ASKED], "W022: can reach /gateway/nginx/, /gateway/envoy is trusted")
            for each in (1, [1, "forwarded"])
        ],
        *[(each, [ASKED], "") for each in (["10.0.0.0/8"], ["unix"], ["10.0.0.0/8", "forwarded"], "everybody")],
        *[(each, [], "") for each in ([], 1)],
    ],
)
def test_gateways_that_nobody_or_everybody_may_be(trusted: Any, urls: list[Any], says: str) -> None:
    found = (path("hello/", say_hello), *urls)
    with override_settings(ROOT_URLCONF=found, RATELIMITER={"TRUSTED_PROXIES": trusted}):
        messages = [*check_gateways(), *check_open_gateways()]
    number, _, text = says.partition(": ")
    assert ids(messages) == [number] * bool(says)
    assert not says or text in messages[0].msg


def test_settings_that_the_docs_name_for_tests_keep_what_checks_ask_for() -> None:
    [written] = re.findall(r"rate in code.*?`RATELIMITER = (.*?)`", PAGES["docs/howto/testing.md"])
    own = {"CACHE_ALIAS": "ratelimit", "TRUSTED_PROXIES": ["10.0.0.0/8"]}
    with override_settings(ROOT_URLCONF=(ASKED,), RATELIMITER=eval(written, {"RATELIMITER": own})):
        assert settings.CACHE_ALIAS is None
        assert check_gateways() == []
