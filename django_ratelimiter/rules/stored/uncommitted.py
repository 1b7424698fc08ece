"""Edits in open transactions. Each transaction becomes one version, whatever the number of its edits.

Django reports the commit of a transaction, but not its rollback, nor that of a savepoint. Both
drop the on_commit callbacks. So each edit registers one; an edit whose callback is gone was rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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


class _Mark:
    """A point in an open transaction at which rules were edited, within the savepoints that are open there.

    version: the number of the edits. is_stored: the transaction has stored its snapshot. rules: as the
    transaction sees them; `None` = not read since the last edit.
    """

    def __init__(self, connection: BaseDatabaseWrapper, version: Version, on_commit: Callable[[], None]) -> None:
        self.on_commit = on_commit
        self.savepoints = list(connection.savepoint_ids)
        transaction.on_commit(on_commit, using=connection.alias)
        self.begin(version)

    def begin(self, version: Version) -> None:
        """Begin another version."""
        self.version, self.is_stored = version, False
        self.rules: RuleSet | None = None
        self.author: Any = None
        self.reason = ""
        self.named: list[str] = []
        self.unnamed = 0

    def is_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether these edits were neither committed nor rolled back."""
        return any(waiting is self.on_commit for _, waiting, *_ in reversed(connection.run_on_commit))


class Edits:
    """All edits of one open transaction. Before the commit, no other transaction can get their number.

    is_named: the edits have a summary, so that single edits need none.
    """

    def __init__(self, connection: BaseDatabaseWrapper, version: Version, on_commit: Callable[[Edits], None]) -> None:
        self.is_named = False
        self._named = 0
        self._marks = [_Mark(connection, version, lambda: on_commit(self))]

    @property
    def version(self) -> Version:
        """The latest number of the edits."""
        return self._marks[-1].version

    @property
    def first_version(self) -> Version:
        """The number of the first edit."""
        return self._marks[0].version

    @property
    def is_stored(self) -> bool:
        """True if the transaction itself has stored the snapshot of the latest number."""
        return self._marks[-1].is_stored

    def add(self, connection: BaseDatabaseWrapper) -> None:
        """Add one more edit: rules that were read before it are outdated."""
        last = self._marks[-1]
        if last.savepoints == connection.savepoint_ids:
            last.rules = None
        else:
            self._marks.append(_Mark(connection, last.version, lambda: None))

    def begin_version(self, connection: BaseDatabaseWrapper, version: Version) -> None:
        """Add one more edit, which has its own number."""
        self.add(connection)
        self._marks[-1].begin(version)
        self._named = 0

    def drop_version(self) -> None:
        """Drop the latest number with its edits, which have changed nothing."""
        version = self.version
        self._marks = [mark for mark in self._marks if mark.version != version]

    def __bool__(self) -> bool:
        """Return whether any edit is left."""
        return bool(self._marks)

    def note_stored(self) -> None:
        """Record that the transaction has stored the snapshot of the latest number, with all edits so far."""
        self._marks[-1].is_stored = True

    def name(self, summary: Callable[[], str], author: Any = None, reason: str = "") -> None:
        """Set summary, author and reason of the latest edit. summary: only called if the maximum is not reached."""
        last = self._marks[-1]
        last.author = last.author or author
        last.reason = last.reason or reason
        if self._named < MAX_NAMED:
            self._named += 1
            last.named += filter(None, [summary()])
        else:
            last.unnamed += 1

    @property
    def author(self) -> Any:
        """The author of the latest version; `None` = not set."""
        return next((mark.author for mark in self._latest() if mark.author), None)

    @property
    def reason(self) -> str:
        """The reason for the latest version; empty = not set."""
        return next((mark.reason for mark in self._latest() if mark.reason), "")

    @property
    def summary(self) -> str:
        """The edits of the latest version, as text."""
        named = [text for mark in self._latest() for text in mark.named]
        more = sum(mark.unnamed for mark in self._latest())
        return "; ".join([*named, *([f"and {more} more"] if more else [])])

    def _latest(self) -> list[_Mark]:
        return [mark for mark in self._marks if mark.version == self.version]

    def rules(self, load: Callable[[], RuleSet]) -> RuleSet:
        """Return the rules as this transaction sees them. load: reads them, once after each edit."""
        last = self._marks[-1]
        if last.rules is None:
            last.rules = load()
            # Its number may never be committed. It need not be compared either: the transaction still has the lock of
            # its number, so no other one can have committed a later one.
            last.rules.compared_as = None
        return last.rules

    def drop_undone(self, connection: BaseDatabaseWrapper) -> None:
        """Drop the latest edits that were rolled back. A savepoint's rollback keeps earlier ones."""
        while self._marks and not self._marks[-1].is_open(connection):
            self._marks.pop()

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
