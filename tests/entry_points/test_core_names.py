"""The names of django-ratelimit's module `core`: what the functions of that package return for the same requests."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from django_ratelimiter import core as ours
from django_ratelimiter.decorators import ratelimit

VIEW = f"code:{__name__}.view"
pytestmark = pytest.mark.django_db
theirs: Any = import_module("django_ratelimit.core")
their_ratelimit: Any = import_module("django_ratelimit.decorators").ratelimit
both = pytest.mark.parametrize("core", [ours, theirs], ids=["ours", "theirs"])
SETTINGS: dict[str, Any] = {"RATELIMIT_IP_META_KEY": "HTTP_X_REAL_IP", "RATELIMIT_IPV4_MASK": 24}


def last_of_forwarded(request: Any) -> str:
    return str(request.headers["X-Forwarded-For"]).rpartition(", ")[2]


@both
@pytest.mark.parametrize(
    ("settings", "meta", "address"),
    [
        ({}, {"REMOTE_ADDR": "192.0.2.7"}, "192.0.2.7"),
        ({}, {"REMOTE_ADDR": "2001:db8::7"}, "2001:db8::"),
        (SETTINGS, {"HTTP_X_REAL_IP": "192.0.2.7"}, "192.0.2.0"),
        (
            {"RATELIMIT_IP_META_KEY": f"{__name__}.last_of_forwarded"},
            {"HTTP_X_FORWARDED_FOR": "203.0.113.1, 192.0.2.7"},
            "192.0.2.7",
        ),
    ],
)
def test_the_address(core: Any, settings: dict[str, Any], meta: dict[str, str], address: str) -> None:
    request = RequestFactory().get("/", **meta)
    request.user = AnonymousUser()
    with override_settings(**settings):
        assert vars(core)["_get_ip"](request) == core.user_or_ip(request) == address
    request.user = User(pk=7)
    assert core.user_or_ip(request) == "7"


@both
@pytest.mark.parametrize(("settings", "meta"), [({}, {"REMOTE_ADDR": ""}), (SETTINGS, {})])
def test_an_address_that_is_not_known_is_an_error(core: Any, settings: dict[str, Any], meta: dict[str, str]) -> None:
    with override_settings(**settings), pytest.raises(ImproperlyConfigured):
        vars(core)["_get_ip"](RequestFactory().get("/", **meta))


@both
def test_a_header(core: Any) -> None:
    request = RequestFactory().get("/", headers={"X-Key": "a"})
    assert [core.get_header(request, name) for name in ("x-key", "X_KEY", "other")] == ["a", "a", ""]


@pytest.mark.parametrize(("rate", "there"), [("500/month", (500, 60)), ("5/hour garbage", (5, 3_600))])
def test_rates_that_django_ratelimit_misreads_are_errors_here(rate: str, there: tuple[int, int]) -> None:
    assert vars(theirs)["_split_rate"](rate) == there
    with pytest.raises(ImproperlyConfigured, match="is not a rate"):
        vars(ours)["_split_rate"](rate)


def test_anonymous_users_share_one_counter_there_and_have_one_for_each_address_here() -> None:
    requests = [RequestFactory().get("/", REMOTE_ADDR=f"192.0.2.{number}") for number in range(3)]
    for request in requests:
        request.user = AnonymousUser()
    cache.clear()
    rate = {"group": "anonymous", "key": "user", "rate": "1/d", "increment": True}
    assert [[core.is_ratelimited(request, **rate) for request in requests] for core in (theirs, ours)] == [
        [False, True, True], [False, False, False],
    ]  # fmt: skip


@ratelimit(key="ip", rate="9/d")
@ratelimit(key="ip", rate="8/h")
@ratelimit(key="ip", rate="7/m", group="mail")
@ratelimit(key="ip", rate="6/s")
def view(request: Any) -> HttpResponse:
    return HttpResponse()


def test_the_names_of_stacked_rates() -> None:
    """As the page on the decorator says."""
    request: Any = RequestFactory().get("/")
    view(request)
    names = {result.limit.quota: result.rule.slug for result in request.ratelimit.results}
    assert (names[6], names[8], names[9]) == (VIEW, f"{VIEW}.3", f"{VIEW}.4")
    assert names[7] == "code:mail.ip.7-60s"


@both
def test_each_rate_that_a_callable_returns_has_its_own_counter(core: Any) -> None:
    def limited(rate: Any, times: int) -> list[bool]:
        rates = {"group": "gc", "key": "ip", "rate": rate, "increment": True}
        return [core.is_ratelimited(RequestFactory().get("/"), **rates) for _ in range(times)]

    cache.clear()
    assert limited(lambda *_: "3/d", 4) == [False] * 3 + [True]
    assert limited(lambda *_: "5/d", 7) == [False] * 5 + [True] * 2
    assert limited("5/1d", 1) == [True]  # the same rate in other words


@pytest.mark.parametrize(("core", "decorate"), [(theirs, their_ratelimit), (ours, ratelimit)], ids=["theirs", "ours"])
def test_each_rate_of_a_function_has_its_own_counter_which_is_that_of_its_decorator(core: Any, decorate: Any) -> None:
    @decorate(key="ip", rate="9/d", block=False)
    @decorate(key="ip", rate="8/d", block=False)
    def stacked(request: Any) -> HttpResponse:
        return HttpResponse()

    def count(rate: str, **options: Any) -> int:
        usage: int = core.get_usage(RequestFactory().get("/"), fn=stacked, key="ip", rate=rate, **options)["count"]
        return usage

    cache.clear()
    stacked(RequestFactory().get("/"))
    assert [count("9/d", increment=True), count("8/d"), count("7/d"), count("6/d", increment=True)] == [2, 1, 0, 1]
    assert count("7/d") == 0
