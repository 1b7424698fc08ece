"""The OpenAPI schema of drf-spectacular tells all that the views take and answer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("drf_spectacular")

from django.test import override_settings
from django.urls import include, path
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

import django_ratelimiter.api.schema  # noqa: F401  as the addresses do where drf-spectacular is installed
from django_ratelimiter.inspection.acts import ACTS

PATTERNS = [path("limits/", include("django_ratelimiter.api.urls"))]

POST = ["200", "400", "401", "403", "429", "503"]
LIST = ["200", "400", "401", "403", "404", "429", "503"]
ANSWERS = {
    **{f"/limits/callers/{act}": POST for act in ("", "leases/", *(f"{kind}/" for kind in ACTS))},
    "/limits/explain/": POST,
    "/limits/me/": ["200", "401", "403", "429", "503"],
    "/limits/rules/": LIST,
    "/limits/rules/{slug}/": ["200", "401", "403", "404", "429", "503"],
    "/limits/rules/{slug}/partitions/": LIST,
    "/limits/usage/": LIST,
    "/limits/usage/top-callers/": LIST,
    "/limits/usage/totals/": LIST,
}


def schema_by(schema_class: str) -> Any:
    with override_settings(REST_FRAMEWORK={"DEFAULT_SCHEMA_CLASS": schema_class}):
        GENERATOR_STATS.reset()
        schema = SchemaGenerator(patterns=PATTERNS).get_schema(request=None, public=True)
    assert not GENERATOR_STATS
    validate_schema(schema)
    return schema


@pytest.fixture(params=["drf_spectacular.openapi.AutoSchema", "django_ratelimiter.schema.AutoSchema"])
def paths(request: pytest.FixtureRequest) -> Any:
    """The paths of the schema, whichever class the project makes it with."""
    return schema_by(request.param)["paths"]


def method_of(path: str) -> str:
    return "post" if "/callers/" in path or "/explain/" in path else "get"


def test_one_method_each(paths: Any) -> None:
    assert {path: list(methods) for path, methods in paths.items()} == {path: [method_of(path)] for path in ANSWERS}


def test_parameters(paths: Any) -> None:
    told = {
        path: [each["name"] for each in methods["get"].get("parameters", [])]
        for path, methods in paths.items()
        if "get" in methods
    }
    period = ["period", "until"]
    assert {path: sorted(names) for path, names in told.items()} == {
        "/limits/me/": [],
        "/limits/rules/": ["mode", "page", "page_size"],
        "/limits/rules/{slug}/": ["slug"],
        "/limits/rules/{slug}/partitions/": sorted([*period, "slug", "by", "granularity", "page", "page_size"]),
        "/limits/usage/": sorted([*period, "cursor", "granularity", "page_size", "rule", "tier"]),
        "/limits/usage/top-callers/": sorted([*period, "by", "identity", "page", "page_size"]),
        "/limits/usage/totals/": sorted([*period, "page", "page_size", "rule", "tier"]),
    }


def test_answers(paths: Any) -> None:
    assert {path: sorted(methods[method_of(path)]["responses"]) for path, methods in paths.items()} == ANSWERS


def test_what_is_asked_by_post_is_answered_as_described(paths: Any) -> None:
    schema = schema_by("drf_spectacular.openapi.AutoSchema")
    posts = [methods["post"] for methods in paths.values() if "post" in methods]
    assert len(posts) == 11
    for responses in (each["responses"] for each in posts):
        assert set(responses["400"]["content"]) == {"application/problem+json"}
        [reference] = {media["schema"]["$ref"] for media in responses["200"]["content"].values()}
        assert reference.rpartition("/")[2] in schema["components"]["schemas"]


def test_an_api_key_lets_a_caller_in_to_its_own_limits_only() -> None:
    schema = schema_by("drf_spectacular.openapi.AutoSchema")
    scheme = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    assert schema["components"]["securitySchemes"]["rateLimitApiKey"] == scheme
    accepting = [
        url
        for url, methods in schema["paths"].items()
        if {"rateLimitApiKey": []} in methods[method_of(url)]["security"]
    ]
    assert accepting == ["/limits/me/"]
