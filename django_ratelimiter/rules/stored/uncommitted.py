"""Edits of open transactions. Each transaction becomes one version, however much it edits.

Django says when a transaction is committed, but neither when it is rolled back nor when one of its savepoints is. Both
drop the callbacks that wait for the commit. So each edit registers one, and an edit whose callback is gone was undone.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ...engine.base import Version
from ...locks import freed_by_fork
from ..ruleset import RuleSet

#: So many edits of a transaction are named in the summary of its version; the others are counted.
MAX_NAMED: Final = 3


class _Mark:
    """A point in an open transaction at which rules were edited, within the savepoints that are open there.

    version: the number that the edits have taken. is_stored: the transaction has stored its snapshot. rules: as the
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
        """Return whether these edits were neither committed nor undone."""
        return any(waiting is self.on_commit for _, waiting, *_ in reversed(connection.run_on_commit))


class Edits:
    """All edits of one open transaction. Nobody else has their number before the commit.

    is_named: somebody has said what is being edited, so that single edits need not.
    """

    def __init__(self, connection: BaseDatabaseWrapper, version: Version, on_commit: Callable[[Edits], None]) -> None:
        self.is_named = False
        self._named = 0
        self._marks = [_Mark(connection, version, lambda: on_commit(self))]

    @property
    def version(self) -> Version:
        """The latest number that they have taken."""
        return self._marks[-1].version

    @property
    def first_version(self) -> Version:
        """The number that the first of them has taken."""
        return self._marks[0].version

    @property
    def is_stored(self) -> bool:
        """True if the transaction itself has stored the snapshot of the latest number."""
        return self._marks[-1].is_stored

    def add(self, connection: BaseDatabaseWrapper) -> None:
        """Note one more edit: what was read of the rules before it no longer holds."""
        last = self._marks[-1]
        if last.savepoints == connection.savepoint_ids:
            last.rules = None
        else:
            self._marks.append(_Mark(connection, last.version, lambda: None))

    def begin_version(self, connection: BaseDatabaseWrapper, version: Version) -> None:
        """Note one more edit, which has taken a number of its own."""
        self.add(connection)
        self._marks[-1].begin(version)
        self._named = 0

    def note_stored(self) -> None:
        """Note that the transaction has stored the snapshot of the latest number, with all edits so far."""
        self._marks[-1].is_stored = True

    def name(self, summary: Callable[[], str], author: Any = None, reason: str = "") -> None:
        """Say what the latest edit was, whose, and why. summary: not called for more edits than are named."""
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
        """The author of the latest version; `None` = nobody was named."""
        return next((mark.author for mark in self._latest() if mark.author), None)

    @property
    def reason(self) -> str:
        """Why the latest version was made; empty = nobody has said."""
        return next((mark.reason for mark in self._latest() if mark.reason), "")

    @property
    def summary(self) -> str:
        """The edits of the latest version, in words."""
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
            # Its number may never be committed. Nor need it be compared: the lock that it was taken under is still
            # held, so nobody else can have committed a later one.
            last.rules.compared_as = None
        return last.rules

    def drop_undone(self, connection: BaseDatabaseWrapper) -> None:
        """Forget the latest edits that were undone. A savepoint's rollback undoes no earlier ones."""
        while self._marks and not self._marks[-1].is_open(connection):
            self._marks.pop()

    def are_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether the transaction is open and has not undone all of them."""
        return bool(self._marks) and self._marks[0].is_open(connection)


_open: Final[WeakKeyDictionary[BaseDatabaseWrapper, Edits]] = WeakKeyDictionary()
_lock: Final = freed_by_fork(Lock())


def forget_all() -> None:
    """Forget all edits, of every connection: those of one whose thread has ended may stay until it is collected."""
    _open.clear()


def are_there_any() -> bool:
    """Return whether any thread may have a transaction open that has edited rules."""
    # To ask the dictionary for its length would take longer than all the rest where nobody is editing.
    return bool(_open.data)  # type: ignore[attr-defined]


def begin(connection: BaseDatabaseWrapper, version: Version, on_commit: Callable[[Edits], None]) -> Edits:
    """Note the first edit of a transaction, which has taken this number."""
    edits = Edits(connection, version, on_commit)
    with _lock:
        _open[connection] = edits
    return edits


def edits_of(connection: BaseDatabaseWrapper) -> Edits | None:
    """Return the edits of this connection's open transaction; `None` if there are none, or all were undone."""
    edits = _open.get(connection)
    if edits is None:
        return None
    if not edits.are_open(connection):  # perhaps just committed: the callback that says so still needs all of them
        forget(connection, edits)
        return None
    edits.drop_undone(connection)
    return edits


def forget(connection: BaseDatabaseWrapper, edits: Edits) -> None:
    """Note that the transaction of these edits has ended; the connection's next one may have begun."""
    with _lock:
        if _open.get(connection) is edits:
            del _open[connection]


def forget_ended() -> None:
    """Forget the transactions of all threads that were rolled back."""
    for reference, edits in list(_open.data.items()):  # type: ignore[attr-defined]  # at once: other threads add some
        connection = reference()
        if connection is not None and not edits.are_open(connection):
            forget(connection, edits)
