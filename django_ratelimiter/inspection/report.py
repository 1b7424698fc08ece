"""Reports as plain data: the JSON of the command and of the API.

A report is a dataclass or a named tuple, such as `Explanation` or `CallerReport`. `Annotated` explains its members
where they are declared, and the OpenAPI schema is made from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final, get_type_hints

from ..rules.records import RuleRecord

#: Header fields of a response with a report, which no cache may store.
PRIVATE: Final = {"Cache-Control": "private, no-store"}


def encoded(value: Any) -> Any:
    """Return a report, or a part of one, as plain data: a rule by its slug, a time in ISO 8601."""
    if isinstance(value, RuleRecord):
        return value.slug
    if is_report(type(value)):
        return {name: encoded(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {name: encoded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return value.isoformat() if isinstance(value, date) else value


def is_report(kind: Any) -> bool:
    """Return whether this is the class of a report, which has members."""
    return kind is not RuleRecord and (is_dataclass(kind) or hasattr(kind, "_fields"))


def members_of(report: type[Any]) -> dict[str, Any]:
    """Return the members of a report's data, with their types and texts."""
    hints = get_type_hints(report, include_extras=True)
    return {
        name: hints[name]
        if name in hints
        else get_type_hints(getattr(report, name).fget, include_extras=True)["return"]
        for name in _names(report)
    }


def texts_of(report: type[Any]) -> dict[str, str]:
    """Return the texts of the members of a report that have one."""
    return {name: hint.__metadata__[0] for name, hint in members_of(report).items() if hasattr(hint, "__metadata__")}


def _names(report: Any) -> tuple[str, ...]:
    """Return the names of the members: those in MEMBERS, which may be properties, or all fields."""
    named: tuple[str, ...] | None = getattr(report, "MEMBERS", None) or getattr(report, "_fields", None)
    return named or tuple(each.name for each in fields(report))
