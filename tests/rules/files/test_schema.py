"""The JSON Schema of rules files agrees with what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation
from jsonschema import Draft202012Validator

from django_ratelimiter.rules.files.fields import access_fields, limit_fields, rule_fields, tier_fields
from django_ratelimiter.rules.files.reading import WrongFile, read
from django_ratelimiter.rules.files.schema import schema

from .test_apply import FILE

KEPT = Path(__file__).parents[3] / "docs/reference/ratelimits.schema.json"

#: A wrong value of each kind, and a right one that is not the default.
WRONG = {"text": 5, "choice": "no such", "flag": "yes", "whole": 1.5, "number": True, "words": "a", "moment": 5}


def is_read(document: Any) -> bool:
    try:
        read(json.dumps(document), "r.json")
    except WrongFile:
        return False
    return True


def test_the_schema_in_the_docs_is_this_one() -> None:
    """If not: `manage.py ratelimit export --schema --to docs/reference/ratelimits.schema.json`."""
    with translation.override("en"):
        assert json.loads(KEPT.read_text()) == schema()


def test_it_is_a_schema_and_takes_a_right_file() -> None:
    import yaml

    Draft202012Validator.check_schema(schema())
    assert not list(Draft202012Validator(schema()).iter_errors(yaml.safe_load(FILE)))


def document(section: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A file with one tier, rule, limit or access entry."""
    if section == "access":
        return {"access": [{"kind": "user", "value": "7", **fields}]}
    if section == "limits":
        return {"rules": {"a": {"limits": [{"quota": 5, "window_seconds": 60, **fields}]}}}
    return {section: {"a": fields}}


@pytest.mark.parametrize(
    ("section", "fields"),
    [("tiers", tier_fields), ("rules", rule_fields), ("limits", limit_fields), ("access", access_fields)],
)
def test_each_field_is_in_both_and_of_the_same_type(section: str, fields: Any) -> None:
    validator = Draft202012Validator(schema())
    for name, field in fields().items():
        wrong = document(section, {name: WRONG[field.kind]})
        assert not validator.is_valid(wrong), name
        assert not is_read(wrong), name
        if field.nullable and name not in ("quota", "window_seconds"):
            right = document(section, {name: None})
            assert validator.is_valid(right), name
            assert is_read(right), name
        for choice in field.choices if section in ("tiers", "rules") and name != "path_kind" else ():
            right = document(section, {name: choice})
            assert validator.is_valid(right), name
            assert is_read(right), name
    assert not validator.is_valid(document(section, {"no_such": 1}))
