"""The JSON Schema of rules files, for completion and checks in editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import override

from .fields import EXPORTED_PATTERN, VERSION, FileField, access_fields, bounds, limit_fields, rule_fields, tier_fields

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_SLUG: Final = "^[-a-zA-Z0-9_]{1,50}$"

#: Schemas of the types of fields.
_KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "text": {"type": "string"},
    "choice": {"type": "string"},
    "flag": {"type": "boolean"},
    "whole": {"type": "integer"},
    "number": {"type": ["number", "string"]},
    "words": {"type": "array", "uniqueItems": True},
    "moment": {"type": "string", "format": "date-time"},
}


def schema() -> dict[str, Any]:
    """Return the schema. What only the engine can check, such as the options of an algorithm, is left to `check`."""
    with override(None):  # the same on each machine
        tier, limit, access = (_object(fields()) for fields in (tier_fields, limit_fields, access_fields))
        rule = _object(rule_fields())
    rule["properties"]["limits"] = {"type": "array", "items": {"$ref": "#/$defs/limit"}}
    access["required"] = ["kind"]
    access["oneOf"] = [{"required": ["value"]}, {"required": ["digest"]}]
    return {
        "$schema": DRAFT,
        "title": "Rules of django_ratelimiter",
        "type": "object",
        "additionalProperties": False,
        "anyOf": [{"required": [section]} for section in ("tiers", "rules", "access")],
        "properties": {
            "version": {"const": VERSION, "description": "The version of this format."},
            "exported_version": {
                "type": "string",
                "pattern": f"^{EXPORTED_PATTERN}$",
                "description": "The version of the database that the file was exported from, as number@epoch.",
            },
            "tiers": _by_slug("tier"),
            "rules": _by_slug("rule"),
            "access": {"type": ["array", "null"], "items": {"$ref": "#/$defs/access"}},
        },
        "$defs": {"tier": tier, "rule": rule, "limit": limit, "access": access},
    }


def _by_slug(name: str) -> dict[str, Any]:
    entry = {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}
    return {"type": ["object", "null"], "propertyNames": {"pattern": _SLUG}, "additionalProperties": entry}


def _object(fields: Mapping[str, FileField]) -> dict[str, Any]:
    properties = {name: _schema_of(field) for name, field in fields.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema_of(field: FileField) -> dict[str, Any]:
    found = dict(_KINDS[field.kind])
    if field.choices:
        found["enum"] = [*field.choices]
    if field.kind == "words":
        found["items"] = {"type": "string"} | ({"enum": [*field.words]} if field.words else {})
    if field.kind == "whole":
        least, largest = bounds(field.column)
        found |= {"minimum": least} if least is not None else {}
        found |= {"maximum": largest} if largest is not None else {}
    if field.kind == "text" and getattr(field.column, "max_length", None) and field.name != "tier":
        found["maxLength"] = field.column.max_length
    if field.nullable:
        found["type"] = [*([found["type"]] if isinstance(found["type"], str) else found["type"]), "null"]
    help_text = str(getattr(field.column, "help_text", ""))
    return found | ({"description": help_text} if help_text else {}) | _default_of(field)


def _default_of(field: FileField) -> dict[str, Any]:
    return {} if field.default is None or field.name in ("kind", "value", "digest") else {"default": field.default}
