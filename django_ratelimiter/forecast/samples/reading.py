"""Reads samples: one query for a period, and one row for each caller, with all of its minutes."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import starmap
from typing import Any, Final, NamedTuple

from django.db import connections, router
from django.db.models import Aggregate, BinaryField, F, Func, Q, QuerySet, Sum, TextField
from django.utils import timezone

from ...engine.base import Alias
from ...models import UsageBucket, UsageSample
from ...usage.reports.coverage import DAY, Period
from ...usage.times import Granularity, aware, stored

#: A period of at least this length is read by the index of callers, a shorter one by that of minutes.
LONG: Final = 2 * DAY

#: Number of callers that are fetched at once.
MAX_FETCHED: Final = 100

#: The time from which PostgreSQL counts microseconds.
_EPOCH_OF_POSTGRESQL: Final = datetime(2000, 1, 1, tzinfo=UTC)

#: A minute as sent by the database: a text, or microseconds.
Minute = Any


class Source(NamedTuple):
    """The requests to read: those of one rule in a period. is_shared: all callers share one counter."""

    rule: str
    period: Period
    is_shared: bool = False


class CallerMinutes(NamedTuple):
    """A sampled caller in one tier. who: its digest. counts: its requests, in each of these minutes, in any order.

    minutes: can be read more than once.
    """

    tier: str
    who: str
    minutes: Iterable[Minute]
    counts: Sequence[int]


class MinuteList:
    """Minutes from SQLite and MySQL: one text, which is split when it is read. For most callers it is not."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[str]:
        return iter(self._text.split(","))


class Listed(Aggregate):
    """All values of a column in a group as one value: numbers or times, in any order.

    A text with commas; on PostgreSQL the bytes of 64-bit integers, which is cheaper. `unpacked` decodes both.
    """

    name = "Listed"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="GROUP_CONCAT(%(expressions)s)", **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sqlite(compiler, connection, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        bytes_of = {"minute": "timestamptz_send", "count": "int8send"}  # the column has a time zone, whatever USE_TZ is
        [column] = self.get_source_expressions()[:1]
        template = f"STRING_AGG({bytes_of[column.target.name]}(%(expressions)s), ''::bytea)"
        return self.as_sql(compiler, connection, template=template, **context)


def callers(source: Source) -> Iterator[CallerMinutes]:
    """Yield the callers of the period, each with its minutes; all of a shared counter as one. One query.

    Memory: MAX_FETCHED callers, and on PostgreSQL and MySQL the packed result, 16 to 30 bytes per sample.
    """
    if source.is_shared:
        yield from _shared(source)
        return
    connection = connections[_database()]
    rows: QuerySet[Any, Any] = UsageSample.objects.using(_database()).filter(rule_slug=source.rule).order_by()
    # An expression instead of the column keeps SQLite from using the index of minutes, for which it would have to sort.
    by_caller = connection.vendor == "sqlite" and source.period.end - source.period.start >= LONG
    rows = rows.annotate(taken=Func("minute", template="+%(expressions)s") if by_caller else F("minute"))
    rows = rows.filter(_within(source, "taken"))
    output: Any = BinaryField() if connection.vendor == "postgresql" else TextField()
    grouped: QuerySet[Any, Any] = rows.values("partition_hash", "tier_slug").annotate(
        minutes=Listed("minute", output_field=output), counts=Listed("count", output_field=output)
    )
    sql, params = grouped.query.get_compiler(_database()).as_sql()
    with connection.cursor() as cursor:
        cursor.execute(_unlimited(connection, sql), params)
        while some := cursor.fetchmany(MAX_FETCHED):
            for who, tier, minutes, counts in some:
                if isinstance(minutes, str):
                    # The JSON parser reads numbers in half the time of `int`.
                    yield CallerMinutes(tier, who, MinuteList(minutes), json.loads(f"[{counts}]"))
                else:
                    yield CallerMinutes(tier, who, _integers(minutes), _integers(counts))


def aliases(source: Source, digests: Sequence[str]) -> Iterator[Alias]:
    """Yield the aliases of these sampled callers that can be read. One query."""
    rows = UsageSample.objects.filter(_within(source, "minute"), rule_slug=source.rule, partition_hash__in=digests)
    yield from starmap(Alias.of, rows.exclude(tail="").order_by().values_list("partition_hash", "tail").distinct())


class Seconds(dict[Minute, int]):
    """The start of each minute of `callers`, in seconds since the Unix epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._zone = connections[_database()].timezone if timezone.is_aware(timezone.now()) else None

    def __missing__(self, minute: Minute) -> int:
        if isinstance(minute, int):
            moment = (_EPOCH_OF_POSTGRESQL + timedelta(microseconds=minute)).replace(tzinfo=UTC)
        else:
            moment = minute if isinstance(minute, datetime) else datetime.fromisoformat(minute)
        if moment.tzinfo is None:  # in the connection's time zone, or without USE_TZ in the project's
            moment = moment.replace(tzinfo=self._zone) if self._zone else aware(moment)
        found = self[minute] = int(moment.timestamp())
        return found


def _shared(source: Source) -> Iterator[CallerMinutes]:
    """Yield the minutes of a rule with a counter that callers share: these are counted, not sampled."""
    rows: QuerySet[Any, Any] = UsageBucket.objects.filter(
        _within(source, "start"), rule_slug=source.rule, granularity=Granularity.MINUTE
    ).order_by()
    summed = rows.values("start").annotate(requests=Sum(F("allowed") + F("rejected") + F("shadow_rejected")))
    found = dict(summed.values_list("start", "requests"))
    if found:
        yield CallerMinutes("", "", [*found], [*map(int, found.values())])


def _unlimited(connection: Any, sql: str) -> str:
    """Return the query with an option that keeps MySQL and MariaDB from truncating long lists."""
    if connection.vendor != "mysql":
        return sql
    most = "group_concat_max_len = 4294967295"
    if connection.mysql_is_mariadb:
        return f"SET STATEMENT {most} FOR {sql}"
    return sql.replace("SELECT ", f"SELECT /*+ SET_VAR({most}) */ ", 1)


def _integers(packed: bytes) -> array[int]:
    found = array("q")
    found.frombytes(packed)
    if sys.byteorder == "little":
        found.byteswap()
    return found


def _within(source: Source, column: str) -> Q:
    """Return the condition that a time is in the period of the source."""
    start, end = map(stored, source.period)
    return Q(**{f"{column}__gte": start, f"{column}__lt": end})


def _database() -> str:
    return router.db_for_read(UsageSample)
