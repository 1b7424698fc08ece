"""The OpenAPI schema tells which views are limited."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.decorators import api_view, schema
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import CharField, Serializer

pytest.importorskip("drf_spectacular")

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.schema import AutoSchema
from django_ratelimiter.throttling import AnonRateThrottle, RuleThrottle

pytestmark = pytest.mark.urls(__name__)


class Name(Serializer):
    name = CharField()


class OwnSchema(AutoSchema):
    def get_response_serializers(self) -> Any:
        return {200: Name, 429: Name}


class Plain(GenericAPIView):
    schema = AutoSchema()
    serializer_class = Name

    def get(self, request: Request) -> Response:
        return Response("ok")

    @method_decorator(ratelimit(key="ip", rate="5/h"))
    def post(self, request: Request) -> Response:
        return Response("ok")


class Throttled(Plain):
    throttle_classes: ClassVar = [RuleThrottle]


class DroppedIn(Plain):
    throttle_classes: ClassVar = [AnonRateThrottle]


@ratelimit(key="user", rate="5/h")
class Decorated(Plain):
    pass


@ratelimit(key="ip", rate="5/h")
@api_view(["GET"])
@schema(AutoSchema())
def around(request: Request) -> Response:
    return Response("ok")


@api_view(["GET"])
@ratelimit(key="ip", rate="5/h")
@schema(AutoSchema())
def within(request: Request) -> Response:
    return Response("ok")


@api_view(["GET"])
@schema(AutoSchema())
def beside(request: Request) -> Response:
    return Response("ok")


class Told(Throttled):
    schema = OwnSchema()


urlpatterns = [
    path("plain/", Plain.as_view()),
    path("throttled/", Throttled.as_view()),
    path("dropped-in/", DroppedIn.as_view()),
    path("decorated/", Decorated.as_view()),
    path("told/", Told.as_view()),
    path("around/", around),
    path("within/", within),
    path("beside/", beside),
]


def responses(url: str, method: str = "get") -> dict[str, Any]:
    found = SchemaGenerator(patterns=urlpatterns).get_schema(request=None, public=True)
    validate_schema(found)
    answers: dict[str, Any] = found["paths"][url][method]["responses"]
    return answers


@pytest.mark.parametrize(
    ("url", "method", "limited"),
    [
        ("/plain/", "get", False),
        ("/plain/", "post", True),
        ("/throttled/", "get", True),
        ("/dropped-in/", "get", True),
        ("/decorated/", "get", True),
        ("/around/", "get", True),
        ("/within/", "get", True),
        ("/beside/", "get", False),
    ],
)
def test_limited_views_tell_so(url: str, method: str, limited: bool) -> None:
    assert ("429" in responses(url, method)) is limited


def test_the_answer_has_its_fields_and_bodies() -> None:
    answer = responses("/throttled/")["429"]
    assert list(answer["headers"]) == [
        "Retry-After", "RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining",
        "X-RateLimit-Reset", "X-RateLimit-Reference",
    ]  # fmt: skip
    assert list(answer["content"]) == ["application/json", "application/problem+json"]


@override_settings(RATELIMITER={"HEADERS": ["ratelimit"]})
def test_fields_that_are_not_sent_are_not_told() -> None:
    assert list(responses("/throttled/")["429"]["headers"]) == ["Retry-After", "RateLimit-Policy", "RateLimit"]


def test_what_a_view_tells_by_itself_stays() -> None:
    assert responses("/told/")["429"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Name"}
