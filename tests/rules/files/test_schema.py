"""The JSON Schema of rules files: for editors, and for the reader itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation
from jsonschema import Draft202012Validator

from django_ratelimiter.rules.files.reading import WrongFile, read
from django_ratelimiter.rules.files.schema import schema

from .test_apply import FILE

KEPT = Path(__file__).parents[3] / "docs/reference/ratelimits.schema.json"


def test_the_schema_in_the_docs_is_this_one() -> None:
    """If not: `manage.py ratelimit export --schema > docs/reference/ratelimits.schema.json`."""
    with translation.override("en"):
        assert json.loads(KEPT.read_text()) == schema()


def test_it_is_a_schema_and_takes_a_right_file() -> None:
    import yaml

    Draft202012Validator.check_schema(schema())
    assert not list(Draft202012Validator(schema()).iter_errors(yaml.safe_load(FILE)))


def document(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A file with one tier, rule, limit or access entry."""
    if kind == "access":
        return {"access": [{"kind": "user", "value": "7", **fields}]}
    if kind == "limit":
        return {"rules": {"a": {"limits": [{"quota": 5, "window_seconds": 60, **fields}]}}}
    return {f"{kind}s": {"a": fields}}


@pytest.mark.parametrize("kind", ["tier", "rule", "limit", "access"])
def test_a_wrong_type_is_reported_as_such_in_each_field(kind: str) -> None:
    for name, field in schema()["$defs"][kind]["properties"].items():
        for wrong in ({}, 1.5, True, "no\nsuch", [{}], None):
            document_with_it = document(kind, {name: wrong})
            if not Draft202012Validator(schema()).is_valid(document_with_it):
                with pytest.raises(WrongFile, match=f"{name}: |Must be|is a group|An access entry needs") as caught:
                    read(json.dumps(document_with_it), "r.json")
                assert ": Must be ," not in str(caught.value), field


@pytest.mark.parametrize("kind", ["tier", "rule"])
def test_each_choice_and_empty_field_is_read(kind: str) -> None:
    for name, field in schema()["$defs"][kind]["properties"].items():
        choices = field.get("enum", []) if name != "path_kind" else []
        for right in choices + ([None] if "null" in field.get("type", "") else []):
            read(json.dumps(document(kind, {name: right})), "r.json")
