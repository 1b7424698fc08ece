"""Exemptions from all rules are chosen by the project, and never by what a client sends."""

from __future__ import annotations

from functools import wraps
from typing import Any, ClassVar

import pytest
from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.viewsets import ViewSet

from django_ratelimiter.middleware import exemption

from ..making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

PREFLIGHT = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}


def run(*_given: Any, **_captured: Any) -> HttpResponse:
    return HttpResponse("ran")


class Plain(View):
    get = post = run


@method_decorator(csrf_exempt, name="dispatch")
class Decorated(Plain):
    pass


class OwnOptions(Plain):
    options = run


class OwnDispatch(Plain):
    dispatch = run


class Behind(LoginRequiredMixin, OwnDispatch):
    """Its dispatch is Django's, which calls the one of its own."""


class Things(ViewSet):
    authentication_classes: ClassVar[list[Any]] = []
    list = run


@wraps(run)
def wrapped(*given: Any, **captured: Any) -> HttpResponse:
    return run(*given, **captured)


ANSWERING = {
    "class": Plain.as_view(),
    "decorated": csrf_exempt(Decorated.as_view()),
    "drf": Things.as_view({"get": "list"}),
}
RUNNING = {
    "function": wrapped,
    "own-options": OwnOptions.as_view(),
    "own-dispatch": OwnDispatch.as_view(),
    "behind": Behind.as_view(),
    "drf-action": Things.as_view({"get": "list", "options": "list"}),
    "drf-function": api_view(["GET", "OPTIONS"])(run),
}
urlpatterns = [
    *(path(f"{name}/", view) for name, view in {**ANSWERING, **RUNNING}.items()),
    path("livez", run),
    re_path("^readyz/?$", run),
    re_path(r"^static/logo\.svg$", run),
    re_path("^(?:.*)$", run),  # the pages of a CMS
]


@pytest.mark.parametrize("name", [*ANSWERING, *RUNNING, "nowhere"])
def test_a_preflight_is_free_only_if_its_view_does_not_run(client: Client, make_rule: MakeRule, name: str) -> None:
    make_rule("all", quota=1)
    answers = [client.options(f"/{name}/", headers=PREFLIGHT) for _ in range(3)]
    assert [each.status_code == 429 for each in answers] == [False, *[name not in ANSWERING] * 2]
    assert client.get("/class/").status_code == (200 if name in ANSWERING else 429)


def test_a_view_for_all_paths_is_not_exempt_at_the_paths_of_others(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    exempt = ["/livez", "/readyz", "/readyz/", "/static/logo.svg"]
    assert [client.get(each).status_code for each in exempt * 2] == [200] * 8
    taken = ["/health", "/static/x.css", "/admin/"]
    assert [client.get(each).status_code for each in taken] == [200, 429, 429]


SITES = {"tests.entry_points.drf_views": "", "tests.urls": "exempt"}


@pytest.mark.parametrize("expected", [pytest.param(each, marks=pytest.mark.urls(urls)) for urls, each in SITES.items()])
def test_exempt_paths_are_those_of_the_addresses_of_each_test(expected: str) -> None:
    """In whatever order these two run: without care, the second finds the paths of the first."""
    assert exemption(RequestFactory().get("/admin/")) == expected
