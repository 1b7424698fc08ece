"""Edits in open transactions. Each transaction becomes one version, whatever the number of its edits.

Django reports the commit of a transaction, but not its rollback, nor that of a savepoint. Both
drop the on_commit callbacks. So each edit registers one; an edit whose callback is gone was rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ...engine.base import Version
from ...engine.locks import freed_by_fork
from ..ruleset import RuleSet

#: Maximum number of edits of a transaction in the summary of its version; the others are counted.
MAX_NAMED: Final = 3


@dataclass(frozen=True)
class Numbered:
    """A version that a transaction makes: its number, and its edits so far.

    named: the first edits as text. count: of all of them. is_stored: the transaction has stored its snapshot.
    """

    version: Version
    author: Any = None
    reason: str = ""
    named: tuple[str, ...] = ()
    count: int = 0
    is_stored: bool = False

    @property
    def summary(self) -> str:
        """The edits as text."""
        more = self.count - MAX_NAMED
        return "; ".join([*self.named, *([f"and {more} more"] if more > 0 else [])])


@dataclass
class _Mark:
    """A point in an open transaction at which rules were edited, within the savepoints that are open there."""

    latest: Numbered
    savepoints: list[str | None]
    on_commit: Callable[[], None]

    def is_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether these edits were neither committed nor rolled back."""
        return any(waiting is self.on_commit for _, waiting, *_ in reversed(connection.run_on_commit))


class Edits:
    """All edits of one open transaction. Before the commit, no other transaction can get their number.

    is_named: the edits have a summary, so that single edits need none.
    """

    def __init__(self, connection: BaseDatabaseWrapper, version: Version, on_commit: Callable[[Edits], None]) -> None:
        self.is_named = False
        self._marks: list[_Mark] = []
        self._mark(connection, Numbered(version), lambda: on_commit(self))

    def _mark(self, connection: BaseDatabaseWrapper, latest: Numbered, on_commit: Callable[[], None]) -> None:
        transaction.on_commit(on_commit, using=connection.alias)
        self._marks.append(_Mark(latest, list(connection.savepoint_ids), on_commit))
        self._rules: RuleSet | None = None

    @property
    def latest(self) -> Numbered:
        """The version with the latest number. A savepoint's rollback gives back that of the edits before it."""
        return self._marks[-1].latest

    @latest.setter
    def latest(self, latest: Numbered) -> None:
        self._marks[-1].latest = latest

    @property
    def first_version(self) -> Version:
        """The number of the first edit."""
        return self._marks[0].latest.version

    def add(self, connection: BaseDatabaseWrapper) -> None:
        """Add one more edit: rules that were read before it are outdated."""
        self._rules = None
        if self._marks[-1].savepoints != connection.savepoint_ids:
            self._mark(connection, self.latest, lambda: None)

    def begin_version(self, connection: BaseDatabaseWrapper, version: Version) -> None:
        """Add one more edit, which has its own number."""
        self.add(connection)
        self.latest = Numbered(version)

    def drop_version(self) -> None:
        """Drop the latest number with its edits, which have changed nothing."""
        version = self.latest.version
        self._marks = [mark for mark in self._marks if mark.latest.version != version]

    def __bool__(self) -> bool:
        """Return whether any edit is left."""
        return bool(self._marks)

    def name(self, summary: Callable[[], str], author: Any = None, reason: str = "") -> None:
        """Set summary, author and reason of the latest edit. summary: only called if the maximum is not reached."""
        latest = self.latest
        texts = filter(None, [summary()] if latest.count < MAX_NAMED else [])
        self.latest = replace(
            latest,
            author=latest.author or author,
            reason=latest.reason or reason,
            named=(*latest.named, *texts),
            count=latest.count + 1,
        )

    def rules(self, load: Callable[[], RuleSet]) -> RuleSet:
        """Return the rules as this transaction sees them. load: reads them, once after each edit."""
        if self._rules is None:
            self._rules = load()
            # Its number may never be committed. It need not be compared either: the transaction still has the lock of
            # its number, so no other one can have committed a later one.
            self._rules.compared_as = None
        return self._rules

    def drop_undone(self, connection: BaseDatabaseWrapper) -> None:
        """Drop the latest edits that were rolled back. A savepoint's rollback keeps earlier ones."""
        while self._marks and not self._marks[-1].is_open(connection):
            self._marks.pop()
            self._rules = None

    def are_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether the transaction is open and has not rolled back all of them."""
        return bool(self) and self._marks[0].is_open(connection)


_open: Final[WeakKeyDictionary[BaseDatabaseWrapper, Edits]] = WeakKeyDictionary()
#: Not empty if any thread may have an open transaction that has edited rules. Every request tests it.
any_open: Final[Collection[object]] = _open.data  # type: ignore[attr-defined]
_lock: Final = freed_by_fork(Lock())


def forget_all() -> None:
    """Drop all edits of every connection: after its thread has ended, they may stay until garbage collection."""
    _open.clear()


def begin(connection: BaseDatabaseWrapper, version: Version, on_commit: Callable[[Edits], None]) -> Edits:
    """Record the first edit of a transaction, which has this number."""
    edits = Edits(connection, version, on_commit)
    with _lock:
        _open[connection] = edits
    return edits


def edits_of(connection: BaseDatabaseWrapper) -> Edits | None:
    """Return the edits of this connection's open transaction; `None` if there are none, or all were rolled back."""
    edits = _open.get(connection)
    if edits is None:
        return None
    if not edits.are_open(connection):  # perhaps committed just now: the callback still needs all of them
        forget(connection, edits)
        return None
    edits.drop_undone(connection)
    return edits


def forget(connection: BaseDatabaseWrapper, edits: Edits) -> None:
    """Record that the transaction of these edits has ended; the connection may already have begun another."""
    with _lock:
        if _open.get(connection) is edits:
            del _open[connection]


def forget_ended() -> None:
    """Drop the transactions of all threads that were rolled back."""
    for reference, edits in list(_open.data.items()):  # type: ignore[attr-defined]  # a copy: other threads add some
        connection = reference()
        if connection is not None and not edits.are_open(connection):
            forget(connection, edits)
