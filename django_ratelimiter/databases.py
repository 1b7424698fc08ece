"""Differences between databases. No other module depends on the vendor, except the migration and the fastest SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from unicodedata import category, digit, normalize

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import connections, router, transaction
from django.db.models import Model, QuerySet
from django.http.request import split_domain_port

from .conf import settings

#: Seconds to wait for the lock of another transaction.
LOCK_SECONDS: Final = 20

#: Longer texts are no names, and take long to normalize.
_MAX_NAME: Final = 1_000
#: Unicode's categories of accents and invisible characters.
_UNREAD: Final = ("Mn", "Mc", "Me", "Cf", "Cc")

Row = TypeVar("Row", bound=Model)
T = TypeVar("T")


def upsert(database: str, rows: Sequence[Row], unique: Sequence[str], update: Sequence[str]) -> None:
    """Insert these rows. If a row with the same values in `unique` exists, update its columns `update`.

    MySQL and MariaDB cannot name the unique columns: they use every unique index. So a table must have only one.
    """
    if not rows:
        return
    named = connections[database].features.supports_update_conflicts_with_target
    type(rows[0])._default_manager.using(database).bulk_create(
        rows, update_conflicts=True, unique_fields=unique if named else None, update_fields=update
    )


def adding_suffix(connection: Any, table: str, unique: Sequence[str], columns: Sequence[str]) -> str:
    """Return the end of an INSERT that adds to `columns` if the row exists. Quotes all names."""
    if connection.features.supports_update_conflicts_with_target:
        sums = (f"{column} = {table}.{column} + EXCLUDED.{column}" for column in columns)
        return f"ON CONFLICT ({', '.join(unique)}) DO UPDATE SET {', '.join(sums)}"
    return f"ON DUPLICATE KEY UPDATE {', '.join(f'{column} = {column} + VALUES({column})' for column in columns)}"


def is_beside_users(model: type[Model]) -> bool:
    """Return whether the model is in the database of users and groups: Django supports relations only within one."""
    return router.db_for_write(model) == router.db_for_write(get_user_model())


def pk_of(model: type[Model], text: str) -> Any:
    """Return the primary key of this model as a text has it; `None` = no row can have it."""
    with suppress(ValidationError):
        pk = model._meta.pk.to_python(text)
        return None if isinstance(pk, int) and pk.bit_length() > 63 else pk  # above the maximum of databases
    return None


def is_in_transaction(*databases: str) -> bool:
    """Return whether this thread has an open transaction in one of these databases, or in any if none is given.

    If such a transaction is broken, only this thread cannot read.
    """
    found = connections.all(initialized_only=True)
    return any(each.in_atomic_block for each in found if not databases or each.alias in databases)


def has_connection(*databases: str) -> bool:
    """Return whether this thread has a connection to one of these databases; other threads may be waiting for it."""
    found = connections.all(initialized_only=True)
    return any(each.connection is not None for each in found if each.alias in databases)


def in_own_transactions(view: Callable[..., T]) -> Callable[..., T]:
    """Exclude a view from ATOMIC_REQUESTS in all databases, because it opens its own transactions."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return view


def compares_bytes(field: Any, database: str) -> bool:
    """Return whether the database considers two values of this column different whenever Python does.

    False for texts with a collation that may ignore case, accents or trailing spaces: the default of MySQL and MariaDB,
    or a collation that the project has chosen.
    """
    if field.get_internal_type() not in ("CharField", "TextField", "EmailField", "SlugField", "URLField"):
        return True
    return connections[database].vendor != "mysql" and not getattr(field, "db_collation", None)


def spelled(name: str, value: str) -> str:
    """Return the value of an identity as it is counted.

    A field of the body is spelled like all that the login treats as the same name: in form NFKC, as in Django's login
    form, and without regard to case. Where the column of login names ignores accents, so does this. Of fields in
    EXACT_FIELDS only the form is changed. A host is in lower case and without a port; "" if it is none. Of headers,
    parameters and cookies, space around them is removed. Other identities are not changed.
    """
    if name == "host":
        return split_domain_port(value.strip())[0]
    if not name.startswith("field:"):
        return value.strip() if name.startswith(("header:", "query:", "cookie:")) else value
    value = value.strip()
    if len(value) > _MAX_NAME:
        return value
    value = normalize("NFKC", value).strip()
    if name in settings.EXACT_FIELDS:
        return value
    if not _compares_names_loosely():
        return value.casefold()
    letters = normalize("NFKD", value.upper()).casefold()
    return "".join([str(digit(each, each)) for each in letters if category(each) not in _UNREAD]).replace("ss", "s")


def _compares_names_loosely() -> bool:
    """Return whether the column of login names may ignore accents. A project may have no users."""
    try:
        users = get_user_model()
    except ImproperlyConfigured:
        return False
    return not compares_bytes(users._meta.get_field(users.USERNAME_FIELD), router.db_for_read(users))


def limit_wait(database: str) -> None:
    """Make this transaction wait at most LOCK_SECONDS for a lock, unless the project has set its own limit.

    PostgreSQL would wait until the other transaction ends, even if its machine is gone. Other databases have a limit.
    """
    connection = connections[database]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, true) WHERE current_setting('lock_timeout') = '0'",
                [f"{LOCK_SECONDS}s"],
            )


def lock_at_once(rows: QuerySet[Row]) -> None:
    """Lock these rows. Raises OperationalError if another transaction has locked one. Does nothing on SQLite."""
    if connections[rows.db].features.has_select_for_update_nowait:
        list(rows.select_for_update(nowait=True))


@contextmanager
def waiting_at_most(seconds: float, database: str) -> Iterator[None]:
    """Make SQLite, which has no row locks, wait at most `seconds` for another writer."""
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


def as_committed(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return these rows as last committed or written by this transaction, even if it has read older ones before.

    Only MySQL and MariaDB read older ones, at REPEATABLE READ: with `isolation_level` None, or this. PostgreSQL, and
    MariaDB from 11.6 on, reject writes to rows that others have changed since.
    """
    connection = connections[rows.db]
    is_older = connection.vendor == "mysql" and getattr(connection, "isolation_level", None) in (
        None,
        "repeatable read",
    )
    return rows.select_for_update() if is_older and connection.in_atomic_block else rows


def read_beside(database: str, read: Callable[[], T]) -> T:
    """Return the result of `read` on a separate connection, in another thread: it sees only committed data."""

    def read_and_leave() -> T:
        try:
            return read()
        finally:
            connections[database].close()

    with ThreadPoolExecutor(1) as beside:
        return beside.submit(read_and_leave).result()
