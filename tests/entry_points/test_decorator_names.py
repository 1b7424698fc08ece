"""Each decorator has its own counter, whose name is the same in every process; code that runs later shares one."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views.generic import RedirectView
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from django_ratelimiter.decorators import get_usage, ratelimit

from .test_decorator_rates import asked
from .test_decorators import Callable

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("clock")]


def show(request: HttpRequest, what: str = "") -> HttpResponse:
    return HttpResponse(what)


def without_wraps(function: Any) -> Any:
    def inner(request: HttpRequest) -> Any:
        return function(request)

    return inner


def limited(view: Any) -> Any:
    """Decorate in a function, which is called while this module is imported."""
    return ratelimit(key="ip", rate="1/d", block=False)(view)


class Items(ViewSet):
    def list(self, request: Any) -> Response:
        return Response("all")

    retrieve = list


@api_view(["GET"])
def framework(request: Any) -> Response:
    return Response("ok")


PAIRS: dict[str, Any] = {
    "as_view": (limited(RedirectView.as_view(url="/x/")), limited(RedirectView.as_view(url="/y/"))),
    "alike": [limited(RedirectView.as_view(url="/x/")) for _ in range(2)],
    "actions": (limited(Items.as_view({"get": "list"})), limited(Items.as_view({"get": "retrieve"}))),
    "partials": (limited(partial(show, what="1")), limited(partial(show, what="2"))),
    "lambdas": (limited(lambda request: HttpResponse("1")), limited(lambda request: HttpResponse("2"))),
    "factory": (limited(without_wraps(show)), limited(without_wraps(lambda request: HttpResponse("x")))),
    "objects": (limited(Callable()), limited(Callable())),
    "function": (limited(show), limited(show)),
    "framework": (limited(framework), limited(framework)),
    "stacked": (limited(limited(show)), limited(limited(show))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_decorators_of_a_module_never_share_a_counter(name: str) -> None:
    found = []
    for view in PAIRS[name] * 2:
        [request] = asked(1)
        view(request)
        found.append(request.limited)  # type: ignore[attr-defined]
    assert found == [False, False, True, True]


def test_usage_of_a_view_is_that_of_its_own_decorator() -> None:
    first, second = PAIRS["function"]
    first(*asked(1))
    usage = [get_usage(*asked(1), fn=view, key="ip", rate="1/d") for view in (first, second)]
    assert [each and each["should_limit"] for each in usage] == [True, False]


class Dispatching(RedirectView):
    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return limited(super().dispatch)(request)


class Method(RedirectView):
    get = method_decorator(ratelimit(key="ip", rate="1/d", block=False))(RedirectView.get)


@pytest.mark.parametrize(
    "view",
    [lambda request: limited(show)(request), Dispatching.as_view(url="/"), Method.as_view(url="/")],
    ids=["function", "dispatch", "method"],
)
def test_decorator_that_is_called_for_each_request_has_one_counter(view: Any) -> None:
    requests = asked(3)
    for request in requests:
        view(request)
    assert [request.limited for request in requests] == [False, True, True]  # type: ignore[attr-defined]


SHOP = """
from django.apps import apps
from django.views.generic import RedirectView
from django_ratelimiter.decorators import ratelimit

views = [ratelimit(key="ip", rate=rate)(RedirectView.as_view(url="/")) for rate in ("100/h", "3/h")]
"""
VIEW = """
def view(request): ...
view = ratelimit(key="ip", rate="5/h")(view)
views.append(view)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The names of modules that decorate views of one class."""
    (tmp_path / "shop_one.py").write_text(SHOP + VIEW)
    (tmp_path / "shop_two.py").write_text(
        SHOP + "from shop_one import view\nviews.append(limited := ratelimit(key='ip', rate='2/h')(view))"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "shop_one", "shop_two"


def slug_of(view: Any) -> str:
    extra = view.ratelimit_limits[-1].resolve(*asked(1), view).extra
    assert extra
    return str(extra.rule.slug)


def names_after_importing(*modules: str) -> dict[str, list[str]]:
    for name in modules:
        sys.modules.pop(name, None)
    return {name: [slug_of(view) for view in importlib.import_module(name).views] for name in modules}


def test_names_are_the_same_whatever_is_imported_first_and_after_a_reload(modules: tuple[str, ...]) -> None:
    names = names_after_importing(*modules)
    assert names_after_importing(*reversed(modules)) == names
    assert len({*chain.from_iterable(names.values())}) == 6
    assert names["shop_one"][2] == "code:shop_one.view"
    assert names["shop_two"][2] == "code:shop_one.view:shop_two.2"
    assert names["shop_one"][1][:-9].endswith(".RedirectView:shop_one:2")
    reloaded = importlib.reload(sys.modules["shop_one"])
    assert [slug_of(view) for view in reloaded.views] == names["shop_one"]
