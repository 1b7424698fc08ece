"""Differences between databases. No other module depends on the vendor, except the migration and the fastest SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeVar

from django.db import connections, router, transaction
from django.db.models import Func, IntegerField, Model, QuerySet

#: Seconds that one waits for another's lock.
LOCK_SECONDS: Final = 20

Row = TypeVar("Row", bound=Model)
T = TypeVar("T")


class FlooredSeconds(Func):
    """A moment in seconds since the Unix epoch, rounded down to a multiple of `seconds`.

    Computed by the database itself: what Django offers calls back into Python on SQLite, for every row.
    """

    output_field = IntegerField()

    def __init__(self, moment: str, seconds: int) -> None:
        super().__init__(moment, seconds=seconds)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(CAST(strftime('%%%%s', %(expressions)s) AS INTEGER) / %(seconds)d * %(seconds)d)"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(CAST(EXTRACT(EPOCH FROM %(expressions)s) AS bigint) / %(seconds)d * %(seconds)d)"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "(TIMESTAMPDIFF(SECOND, '1970-01-01', %(expressions)s) DIV %(seconds)d * %(seconds)d)"
        return self.as_sql(compiler, connection, template=template, **context)


def upsert(database: str, rows: Sequence[Row], unique: Sequence[str], update: Sequence[str]) -> None:
    """Insert these rows; where there is one with the same values in `unique`, write the columns `update` into it.

    MySQL and MariaDB take no names of unique columns: there every unique index counts, so a table must have one only.
    """
    if not rows:
        return
    named = connections[database].features.supports_update_conflicts_with_target
    type(rows[0])._default_manager.using(database).bulk_create(
        rows, update_conflicts=True, unique_fields=unique if named else None, update_fields=update
    )


def adding_suffix(connection: Any, table: str, unique: Sequence[str], columns: Sequence[str]) -> str:
    """Return the end of an INSERT that adds to `columns` where the row exists already. All names are quoted."""
    if connection.features.supports_update_conflicts_with_target:
        sums = (f"{column} = {table}.{column} + EXCLUDED.{column}" for column in columns)
        return f"ON CONFLICT ({', '.join(unique)}) DO UPDATE SET {', '.join(sums)}"
    return f"ON DUPLICATE KEY UPDATE {', '.join(f'{column} = {column} + VALUES({column})' for column in columns)}"


def is_joinable(model: type[Model], other: type[Model]) -> bool:
    """Return whether rows of the two models are read from one database, so that a query can join them."""
    return router.db_for_read(model) == router.db_for_read(other)


def in_own_transactions(view: Callable[..., T]) -> Callable[..., T]:
    """Have ATOMIC_REQUESTS open no transaction around a view, in any database: it opens its own."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return view


def compares_bytes(field: Any, database: str) -> bool:
    """Return whether the database tells two values of this column apart whenever Python does.

    Not texts whose collation may ignore case, accents or spaces at the end: that of MySQL and MariaDB does by default,
    and elsewhere one that the project has chosen may.
    """
    if field.get_internal_type() not in ("CharField", "TextField", "EmailField", "SlugField", "URLField"):
        return True
    return connections[database].vendor != "mysql" and not getattr(field, "db_collation", None)


def limit_wait(database: str) -> None:
    """Have this transaction wait for no lock longer than LOCK_SECONDS, if the project has set no limit of its own.

    PostgreSQL would wait as long as the other transaction is open, be its machine gone. Others have limits.
    """
    connection = connections[database]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true) WHERE current_setting('lock_timeout') = '0'",
                [f"{LOCK_SECONDS}s"],
            )


def lock_at_once(rows: QuerySet[Row]) -> None:
    """Lock these rows, or raise OperationalError where another transaction has locked one; nothing on SQLite."""
    if connections[rows.db].features.has_select_for_update_nowait:
        list(rows.select_for_update(nowait=True))


@contextmanager
def waiting_at_most(seconds: float, database: str) -> Iterator[None]:
    """Have SQLite, which has no locks of rows, wait no longer than this for whoever is writing."""
    connection = connections[database]
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        [usual] = cursor.execute("PRAGMA busy_timeout").fetchone()
        cursor.execute(f"PRAGMA busy_timeout = {min(usual, int(1_000 * seconds))}")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {usual}")


def together(database: str) -> AbstractContextManager[object]:
    """A transaction where rows can be locked. SQLite might refuse to write in one that began with reading."""
    locks = connections[database].features.has_select_for_update
    return transaction.atomic(using=database) if locks else nullcontext()


def unlocked(rows: QuerySet[Row]) -> QuerySet[Row]:
    """These rows, locked; those that another transaction has locked are left out where the database can do that."""
    return rows.select_for_update(skip_locked=connections[rows.db].features.has_select_for_update_skip_locked)


def as_committed(rows: QuerySet[Row]) -> QuerySet[Row]:
    """These rows as they were last committed or as this transaction has written them, whatever it has read before.

    On PostgreSQL nothing is done for it: at the levels that read a snapshot it refuses to write what others have
    written since.
    """
    connection = connections[rows.db]
    return rows.select_for_update() if connection.vendor == "mysql" and _reads_a_snapshot(connection) else rows


def read_committed(database: str, read: Callable[[], T]) -> T:
    """Return what `read` finds in the database now, even in a transaction that reads a snapshot."""
    return read_beside(database, read) if _reads_a_snapshot(connections[database]) else read()


def read_beside(database: str, read: Callable[[], T]) -> T:
    """Return what `read` finds over a connection of its own, in another thread: only what is committed."""

    def read_and_leave() -> T:
        try:
            return read()
        finally:
            connections[database].close()

    with ThreadPoolExecutor(1) as beside:
        return beside.submit(read_and_leave).result()


def _reads_a_snapshot(connection: Any) -> bool:
    """Return whether an open transaction reads a snapshot, which is as old as its first read.

    That is REPEATABLE READ, which Django asks for nowhere, and which MySQL and MariaDB have where a project sets
    `isolation_level` to None; on PostgreSQL also SERIALIZABLE.
    """
    if not connection.in_atomic_block:
        return False
    level = getattr(connection, "isolation_level", None)
    if connection.vendor == "mysql":
        return level in (None, "repeatable read")
    return getattr(level, "name", "") in ("REPEATABLE_READ", "SERIALIZABLE")
