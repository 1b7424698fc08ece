"""Whether a rule is for a scope that no view asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.views import APIView

from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.rules.routes import for_no_view


@ratelimit("of-a-function")
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Method(View):
    @method_decorator(ratelimit("of-a-method"))
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Throttled(APIView):
    throttle_scope = "of-a-class"


@ratelimit("of-a-decorated-class")
class Decorated(APIView): ...


urlpatterns = [
    path("function", function),
    path("method", Method.as_view()),
    path("throttled", Throttled.as_view()),
    path("decorated", Decorated.as_view()),
]


def rule(scope: str) -> Any:
    return SimpleNamespace(slug=scope, scope=scope)


@pytest.mark.parametrize("scope", ["of-a-function", "of-a-method", "of-a-class", "of-a-decorated-class", ""])
def test_what_views_ask_for_is_theirs(scope: str) -> None:
    with override_settings(ROOT_URLCONF=__name__):
        assert not for_no_view([rule(scope)])


def test_anything_else_is_of_other_code() -> None:
    with override_settings(ROOT_URLCONF=__name__):
        assert for_no_view([rule("nightly")])
    with override_settings(ROOT_URLCONF=None):
        assert not for_no_view([rule("nightly")])
