"""The page for those who come from other limiters: each line of its tables that ends with a number is run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter import conf, throttling
from django_ratelimiter.decorators import Ratelimited, ratelimit
from django_ratelimiter.testing import override_rules

from .pages import PAGES, rows, section

PAGE = PAGES["docs/howto/come-from.md"]


def decorators() -> list[Any]:
    """Each decorator of the tables, as text, and how many requests are allowed."""
    table = [cells for cells in rows(PAGE) if cells[-1].isdigit() and cells[-2].startswith("`@ratelimit(")]
    return [pytest.param(now, int(allowed), id=str(number)) for number, (*_, now, allowed) in enumerate(table)]


def test_there_are_many() -> None:
    assert len(decorators()) > 8
    assert len(throttles()) == 4


@pytest.mark.parametrize(("now", "passing"), decorators())
def test_a_line_allows_what_it_says(now: str, passing: int) -> None:
    [written] = re.findall(r"^`@(ratelimit\(.*?\))`", now)

    @eval(written, {"ratelimit": ratelimit})
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def passes() -> bool:
        request = RequestFactory().get("/", headers={"x-key": "k"})
        try:
            view(request)
        except Ratelimited:
            return False
        return True

    with override_rules():
        assert [passes() for _ in range(passing + 2)] == [True] * passing + [False] * 2


def test_function_in_place_of_skip_if_frees_its_path() -> None:
    [written] = re.findall(r"^\| `skip_if=\S+` \| `@(.*?)` \| \d+ \|$", PAGE, re.MULTILINE)
    view = eval(written, {"ratelimit": ratelimit})(lambda request: HttpResponse())
    with override_rules():
        assert [view(RequestFactory().get("/free/")).status_code for _ in range(5)] == [200] * 5


def test_a_decorator_for_each_method_counts_it_apart() -> None:
    view = lambda request: HttpResponse()  # noqa: E731
    for method in ("GET", "POST"):
        view = ratelimit(method, key="ip", rate="2/h", method=method)(view)
    with override_rules():
        for method in ("get", "post"):
            ask = getattr(RequestFactory(), method)
            assert [view(ask("/")).status_code for _ in range(2)] == [200, 200]
            with pytest.raises(Ratelimited):
                view(ask("/"))


RATES = {"DEFAULT_THROTTLE_RATES": {"anon": "3/hour", "user": "3/hour", "scope": "3/hour"}}


def throttles() -> list[str]:
    """Return the names of DRF's classes that the page says mean the same."""
    [same] = re.findall(r"^These mean the same: (.*?);", section(PAGE, "## DRF's throttles"), re.MULTILINE | re.DOTALL)
    return re.findall(r"`(\w+Throttle)`", same)


@override_settings(REST_FRAMEWORK=RATES)
@pytest.mark.parametrize("name", throttles())
def test_a_throttle_of_the_same_name_allows_its_rate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = getattr(throttling, name)
    monkeypatch.setattr(found, "THROTTLE_RATES", RATES["DEFAULT_THROTTLE_RATES"])
    if name == "SimpleRateThrottle":

        class Own(throttling.SimpleRateThrottle):
            scope = "scope"

            def get_cache_key(self, request: Request, view: Any) -> str:
                return "everybody"

        found = Own

    class View(APIView):
        throttle_classes = (found,)
        throttle_scope = "scope"

        def get(self, request: Request) -> Response:
            return Response()

    with override_rules():
        statuses = [View.as_view()(RequestFactory().get("/")).status_code for _ in range(4)]
    assert statuses == [200] * 3 + [429]


def test_settings_in_the_tables_exist() -> None:
    assert set(re.findall(r'RATELIMITER\["(\w+)"\]', PAGE)) <= set(conf.ENTRIES)
