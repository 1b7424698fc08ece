"""The OpenAPI schema of drf-spectacular describes `me/`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("drf_spectacular")

from django.test import Client, override_settings
from django.urls import include, path
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from .conftest import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.api.urls")]

PATTERNS = [path("limits/", include("django_ratelimiter.api.urls"))]


@pytest.mark.parametrize(
    ("schema_class", "statuses"),
    [
        ("drf_spectacular.openapi.AutoSchema", {"200"}),
        ("django_ratelimiter.schema.AutoSchema", {"200", "429"}),
    ],
)
def test_schema_names_all_that_is_answered(
    make_rule: MakeRule, as_ann: Client, schema_class: str, statuses: set[str]
) -> None:
    with override_settings(REST_FRAMEWORK={"DEFAULT_SCHEMA_CLASS": schema_class}):
        GENERATOR_STATS.reset()
        schema: Any = SchemaGenerator(patterns=PATTERNS).get_schema(request=None, public=True)
    assert not GENERATOR_STATS
    validate_schema(schema)
    assert list(schema["paths"]) == ["/limits/me/"]
    [operation] = schema["paths"]["/limits/me/"].values()
    assert (operation.get("parameters", []), set(operation["responses"])) == ([], statuses)
    make_rule("api")
    make_rule("item", partition_by=["path:item"])  # what remains is not known
    [answer] = operation["responses"]["200"]["content"].values()
    compare(as_ann.get("/limits/me/").json(), answer["schema"], schema["components"]["schemas"])


def compare(answered: Any, told: Any, components: Any) -> None:
    """Compare the names in the answer, and what is null, with the schema."""
    for each in (told, *told.get("allOf", ())):
        if "$ref" in each:
            told = components[each["$ref"].rpartition("/")[2]]
    for each in answered if isinstance(answered, list) else ():
        compare(each, told["items"], components)
    if isinstance(answered, dict):
        optional = {"customer"} & told["properties"].keys()
        assert answered.keys() | optional == told["properties"].keys() == set(told["required"]) | optional
        for name, value in answered.items():
            assert value is not None or told["properties"][name]["nullable"], name
            compare(value, told["properties"][name], components)
