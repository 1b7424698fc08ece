"""Reports as plain data: the JSON of the command.

A report is a dataclass or a named tuple, such as `Explanation` or `CallerReport`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from ..rules.records import RuleRecord
from ..values.references import Reference


def encoded(value: Any) -> Any:
    """Return a report, or a part of one, as plain data: a rule by its slug, a time in ISO 8601."""
    if isinstance(value, RuleRecord | Reference):
        return str(value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return {name: encoded(getattr(value, name)) for name in _names(value)}
    if isinstance(value, Mapping):
        return {name: encoded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return value.isoformat() if isinstance(value, date) else value


def _names(report: Any) -> tuple[str, ...]:
    """Return the names of the members: those in MEMBERS, which may be properties, or all fields."""
    named: tuple[str, ...] | None = getattr(report, "MEMBERS", None) or getattr(report, "_fields", None)
    return named or tuple(each.name for each in fields(report))
