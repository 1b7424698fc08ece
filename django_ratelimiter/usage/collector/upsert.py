"""Adds to usage buckets that may or may not exist, in one statement if the database supports that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import OperationalError, connections
from django.db.models import F

from ...databases import adding_suffix
from ...models import UsageBucket

SLUG_LENGTH: Final = UsageBucket.rule_slug.field.max_length

#: Rows per statement: few enough for the maximum number of parameters of any database.
MAX_ROWS: Final = 80


class BucketKey(NamedTuple):
    """The columns that identify a bucket. Rows are always written in this order, which prevents deadlocks."""

    granularity: str
    rule_slug: str
    tier_slug: str
    start: datetime


class TotalKey(NamedTuple):
    """The columns that identify a total."""

    granularity: str
    start: datetime


class CallerKey(NamedTuple):
    """The columns that identify the usage of a caller."""

    identity: str
    value: str
    rule_slug: str
    hour: datetime


#: Numbers in the order of COUNTS, by BucketKey, TotalKey or CallerKey.
Amounts = Mapping[Any, Sequence[int]]


def slug(text: str, length: int | None = SLUG_LENGTH) -> str:
    """Return the text as a column can store it: the engine accepts any labels."""
    return text.replace("\x00", "")[:length]


def add(database: str, totals: Amounts, model: Any = UsageBucket) -> None:
    """Add these numbers to rows, in the caller's transaction. Raises OperationalError if it cannot be done now."""
    keys: list[Any] = [key for key in sorted(totals) if any(totals[key])]
    if not connections[database].features.supports_update_conflicts:
        _add_one_by_one(database, model, keys, totals)
        return
    for place in range(0, len(keys), MAX_ROWS):
        _add_at_once(database, model, keys[place : place + MAX_ROWS], totals)


def _add_at_once(database: str, model: Any, keys: Sequence[Any], totals: Any) -> None:
    connection, columns = connections[database], keys[0]._fields
    names = (*columns, *model.COUNTS)
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    quoted = dict(zip(names, (connection.ops.quote_name(field.column) for field in fields), strict=True))
    table = connection.ops.quote_name(model._meta.db_table)
    row = f"({', '.join(['%s'] * len(names))})"
    suffix = adding_suffix(
        connection, table, [quoted[name] for name in columns], [quoted[name] for name in model.COUNTS]
    )
    values = [
        field.get_db_prep_save(value, connection)
        for key in keys
        for field, value in zip(fields, (*key, *totals[key]), strict=True)
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(quoted.values())}) VALUES {', '.join([row] * len(keys))} {suffix}",
            values,
        )


def _add_one_by_one(database: str, model: Any, keys: Sequence[Any], totals: Any) -> None:
    rows = model._default_manager.using(database)
    for key in keys:
        row = rows.filter(**key._asdict())
        added = {field: F(field) + amount for field, amount in zip(model.COUNTS, totals[key], strict=True)}
        if not row.update(**added):
            rows.bulk_create([model(**key._asdict())], ignore_conflicts=True)
            if row.update(**added) != 1:
                raise OperationalError(f"The row of {key} was deleted while it was added to.")
