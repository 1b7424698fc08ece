"""The JSON Schema of rules files, made from the models. Files are validated with it; editors complete by it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models as fields
from django.db.backends.base.operations import BaseDatabaseOperations
from django.utils.translation import gettext_noop, override

from ...models import AccessEntry, Rule, RuleLimit
from ...models.validation import METHODS
from ...values.bounds import MAX_LIMITS
from ..stored.history.snapshots import limit_columns, rule_columns, tier_columns

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

#: The version of the format. A file may leave it out.
VERSION: Final = 1

#: The owners that a file can give a rule; the usual one first.
_OWNERS: Final = (Rule.Owner.FILE.value, Rule.Owner.ADMIN.value)

Columns = dict[str, Any]


def tier_fields() -> Columns:
    """Return the columns of a tier in a file by name, without its slug, which is the key."""
    return _by_name(column for column in tier_columns() if column.name != "slug")


def rule_fields() -> Columns:
    """Return the columns of a rule in a file, without its slug and its limits."""
    return _by_name(column for column in rule_columns() if column.name != "slug")


def limit_fields() -> Columns:
    """Return the columns of a limit in a file, without its generation, which belongs to the counters."""
    names = ["tier", *(name for name in limit_columns() if name != "generation")]
    return _by_name(RuleLimit._meta.get_field(name) for name in names)


def access_fields() -> Columns:
    """Return the columns of an access entry in a file. There, a digest can take the place of a value."""
    return _by_name(column for column in AccessEntry._meta.concrete_fields if not column.primary_key)


def default_of(column: Any) -> Any:
    """Return the value of a field that a file leaves out."""
    if column.name == "owner":
        return _OWNERS[0]
    default = None if column.null and not column.has_default() else column.get_default()
    return getattr(default, "value", default)


def plain(column: Any, value: Any) -> Any:
    """Return a value of a model in the format of a file: with JSON's types."""
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or not isinstance(column, fields.DecimalField):
        return value
    number = Decimal(value)
    return int(number) if number == number.to_integral_value() else float(number)


def schema() -> dict[str, Any]:
    """Return the schema. What only the models can check, such as the options of an algorithm, is left to `check`.

    Each title is how an error names such a value.
    """
    with override(None):  # the same on each machine
        tier = _object(gettext_noop("a tier"), tier_fields())
        rule = _object(gettext_noop("a rule"), rule_fields())
        limit = _object(gettext_noop("a limit"), limit_fields())
        access = _object(gettext_noop("an access entry"), access_fields())
    tier["type"] = rule["type"] = ["object", "null"]
    rule["properties"]["limits"] = {
        "title": gettext_noop("a list of limits"),
        "type": "array",
        "items": {"$ref": "#/$defs/limit"},
        "maxItems": MAX_LIMITS,
    }
    access["properties"]["digest"] = {"type": "string"}
    access |= {"required": ["kind"], "oneOf": [{"required": ["value"]}, {"required": ["digest"]}]}
    return {
        "$schema": DRAFT,
        "title": gettext_noop("a rules file"),
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {"x-.*": {"description": "Anything, such as values that others refer to by *name."}},
        "anyOf": [{"required": [section]} for section in ("tiers", "rules", "access")],
        "properties": {
            "version": {"const": VERSION, "description": "The version of this format."},
            "exported_version": {
                "type": "string",
                "pattern": "^[0-9]{1,15}@[0-9]{1,15}$",
                "description": "The version of the database that the file was exported from, as number@epoch.",
            },
            "tiers": _by_slug("tier"),
            "rules": _by_slug("rule"),
            "access": {"title": gettext_noop("a list"), "type": ["array", "null"], "items": {"$ref": "#/$defs/access"}},
        },
        "$defs": {"tier": tier, "rule": rule, "limit": limit, "access": access},
    }


def _by_name(columns: Iterable[Any]) -> Columns:
    return {column.name: column for column in columns}


def _by_slug(name: str) -> dict[str, Any]:
    return {
        "title": gettext_noop("entries by slug, such as “search: …”"),
        "type": ["object", "null"],
        "propertyNames": {"title": "a slug", "pattern": "^[-a-zA-Z0-9_]{1,50}$"},
        "additionalProperties": {"$ref": f"#/$defs/{name}"},
    }


def _object(title: str, columns: Columns) -> dict[str, Any]:
    properties = {name: _schema_of(column) for name, column in columns.items()}
    return {"title": title, "type": "object", "additionalProperties": False, "properties": properties}


def _schema_of(column: Any) -> dict[str, Any]:
    found = _values_of(column)
    if column.null and "enum" in found:
        found["enum"].append(None)
    elif column.null:
        found["type"] = [*([found["type"]] if isinstance(found["type"], str) else found["type"]), "null"]
    if help_text := str(column.help_text):
        found["description"] = help_text
    if (default := default_of(column)) is not None and column.name not in ("kind", "value"):
        found["default"] = default
    return found


def _values_of(column: Any) -> dict[str, Any]:
    """Return the schema of a column's values, but for null."""
    if column.name == "owner":
        return {"enum": [*_OWNERS]}
    if column.flatchoices:
        return {"enum": [str(value) for value, _label in column.flatchoices]}
    if isinstance(column, fields.BooleanField):
        return {"type": "boolean"}
    if isinstance(column, fields.IntegerField):
        return {"type": "integer", **_bounds(column)}
    if isinstance(column, fields.DecimalField):  # in a text, with as many digits as written
        return {"type": ["number", "string"], "pattern": r"^[0-9]{1,20}(\.[0-9]{1,20})?$"}
    if isinstance(column, fields.JSONField):
        items = {"enum": [*METHODS]} if column.name == "methods" else {"type": "string"}
        return {"type": "array", "items": items, "uniqueItems": True}
    if isinstance(column, fields.DateTimeField):
        return {"type": "string", "format": "date-time"}
    if isinstance(column, fields.ForeignKey) or not getattr(column, "max_length", None):
        return {"type": "string"}
    return {"type": "string", "maxLength": column.max_length}


def _bounds(column: Any) -> dict[str, int]:
    """Return the minimum and maximum whole number of a field.

    They do not depend on the database, because a file is checked without one. SQLite itself would accept more.
    """
    least, most = BaseDatabaseOperations.integer_field_ranges[column.get_internal_type()]
    for each in column.validators:
        if isinstance(each, MinValueValidator):
            least = max(least, each.limit_value)
        elif isinstance(each, MaxValueValidator):
            most = min(most, each.limit_value)
    return {"minimum": least, "maximum": most}
