"""The fields of a rules file, made from those of the models: names, types, defaults and allowed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models as fields
from django.db.backends.base.operations import BaseDatabaseOperations
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from ...models import AccessEntry, Rule, RuleLimit
from ...models.validation import METHODS
from ..stored.history.snapshots import limit_columns, rule_columns, tier_columns
from .faults import did_you_mean
from .text.nodes import Node, exact

#: The version of the format. A file may leave it out.
VERSION: Final = 1

#: The format of the version of the database that a file was exported from: number@epoch.
EXPORTED_PATTERN: Final = r"[0-9]{1,15}@[0-9]{1,15}"

#: The sections of a file, in their order.
SECTIONS: Final = ("version", "exported_version", "tiers", "rules", "access")

Kind = Literal["text", "choice", "flag", "whole", "number", "words", "moment"]


@dataclass(frozen=True)
class FileField:
    """A field of a tier, rule, limit or access entry in a file.

    default: the value if the field is omitted. column: the field of the model; `None` for a limit's tier.
    choices: the only values; empty = any. words: the possible items of a list; empty = only the model validates.
    """

    name: str
    kind: Kind
    default: Any
    column: Any = None
    nullable: bool = False
    choices: Sequence[str] = ()
    words: Sequence[str] = ()

    def value_of(self, node: Node) -> Any:
        """Return the value of a node for this field. Raises ValueError, saying what would be right."""
        value = node.value
        if value is None and self.nullable:
            return None
        if self.kind == "choice" and isinstance(value, bool):
            value = {True: "on", False: "off"}[value] if "off" in self.choices else value  # booleans in YAML 1.1
        if not isinstance(value, _TYPES[self.kind]) or (self.kind in ("whole", "number") and isinstance(value, bool)):
            raise _wrong_kind(self.kind, value)
        if self.kind == "words":
            return [_text_of(each) for each in value]
        if self.kind == "number":
            return _decimal(value)
        if self.kind == "moment":
            return _moment(value)
        if self.choices and value not in self.choices:
            raise ValueError(
                _("%(word)s is unknown.") % {"word": shown(value)} + f" {did_you_mean(value, self.choices)}"
            )
        return value

    def plain(self, value: Any) -> Any:
        """Return a value of the model in the format of a file: with JSON's types."""
        if value is None or self.kind not in ("number", "moment"):
            return value
        if self.kind == "moment":
            return value.isoformat()
        number = Decimal(value)
        return int(number) if number == number.to_integral_value() else float(number)


_TYPES: Final[Mapping[str, Any]] = {
    "text": str,
    "choice": str,
    "flag": bool,
    "whole": int,
    "number": (int, Decimal, str),
    "words": list,
    "moment": str,
}


def tier_fields() -> dict[str, FileField]:
    """Return the fields of a tier, without its slug, which is the key."""
    return _named(_field(column) for column in tier_columns() if column.name != "slug")


def rule_fields() -> dict[str, FileField]:
    """Return the fields of a rule, without its slug and its limits. The default owner is the file."""
    found = _named(_field(column) for column in rule_columns() if column.name not in ("slug", "owner"))
    owners = (Rule.Owner.ADMIN.value, Rule.Owner.FILE.value)
    owner = FileField("owner", "choice", owners[1], Rule._meta.get_field("owner"), choices=owners)
    return {**found, "owner": owner}


def limit_fields() -> dict[str, FileField]:
    """Return the fields of a limit, without its generation, which belongs to the counters."""
    columns = [RuleLimit._meta.get_field(name) for name in limit_columns() if name != "generation"]
    tier = FileField("tier", "text", None, RuleLimit._meta.get_field("tier"), nullable=True)
    return {"tier": tier, **_named(map(_field, columns))}


def access_fields() -> dict[str, FileField]:
    """Return the fields of an access entry. digest: replaces a value that is not in the file."""
    found = _named(_field(column) for column in AccessEntry._meta.concrete_fields if not column.primary_key)
    return {**found, "digest": FileField("digest", "text", "", None)}


def shown(value: Any) -> str:
    """Return an invalid value as shown in a message."""
    if value is None:
        return _("nothing")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"“{value[:60]}”"
    if isinstance(value, int | Decimal):
        return str(value)
    return _("a list") if isinstance(value, list) else _("a group of fields")


def _named(found: Iterable[FileField]) -> dict[str, FileField]:
    return {each.name: each for each in found}


def _field(column: Any) -> FileField:
    default = None if column.null and not column.has_default() else column.get_default()
    words = METHODS if column.name == "methods" else ()
    choices = [str(value) for value, _label in column.flatchoices]
    return FileField(
        column.name, _kind(column), getattr(default, "value", default), column, column.null, choices, words
    )


def _kind(column: Any) -> Kind:
    if column.flatchoices:
        return "choice"
    kinds: list[tuple[type, Kind]] = [
        (fields.BooleanField, "flag"),
        (fields.IntegerField, "whole"),
        (fields.DecimalField, "number"),
        (fields.JSONField, "words"),
        (fields.DateTimeField, "moment"),
    ]
    return next((kind for type_, kind in kinds if isinstance(column, type_)), "text")


def bounds(column: Any) -> tuple[int | None, int | None]:
    """Return the minimum and maximum whole number of a field; `None` = there is none.

    They do not depend on the database, because a file is checked without one. SQLite itself would accept more.
    """
    found = [each for each in column.validators if isinstance(each, MinValueValidator | MaxValueValidator)]
    least = [each.limit_value for each in found if isinstance(each, MinValueValidator)]
    largest = [each.limit_value for each in found if isinstance(each, MaxValueValidator)]
    if (ranges := BaseDatabaseOperations.integer_field_ranges.get(column.get_internal_type())) is not None:
        least.append(ranges[0])
        largest.append(ranges[1])
    return max(least, default=None), min(largest, default=None)


def _in_words(kind: Kind) -> str:
    return {
        "text": _("a text"),
        "choice": _("a word"),
        "flag": _("true or false"),
        "whole": _("a whole number"),
        "number": _("a number"),
        "words": _("a list of texts"),
        "moment": _("a date and time, such as “2026-12-31T23:59:59+00:00”"),
    }[kind]


def _wrong_kind(kind: Kind, value: Any) -> ValueError:
    return ValueError(_("Must be %(kind)s, not %(value)s.") % {"kind": _in_words(kind), "value": shown(value)})


def _text_of(node: Node) -> str:
    if not isinstance(node.value, str):
        raise _wrong_kind("text", node.value)
    return node.value


def _decimal(value: Any) -> Decimal:
    try:
        return exact(value)
    except ValueError:
        raise _wrong_kind("number", value) from None


def _moment(value: str) -> datetime:
    try:
        found = parse_datetime(value)
    except ValueError:
        found = None
    if found is None:
        raise _wrong_kind("moment", value)
    return found
