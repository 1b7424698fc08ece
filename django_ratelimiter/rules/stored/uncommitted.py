"""Edits in open transactions. Each transaction becomes one version, whatever the number of its edits.

Django reports the commit of a transaction, but not its rollback, nor that of a savepoint. Both drop the callbacks that
wait for the commit. So each edit is such a callback, and what is left of them are the edits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakSet

from django.db import connections, transaction

from ...engine.base import Version
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


class _Mark:
    """The edits within some savepoints: a callback at the commit. rules: as the transaction saw them after the last."""

    def __init__(self, edits: Edits) -> None:
        self.edits, self.latest, self.is_dropped = edits, edits.latest, False
        self.rules: RuleSet | None = None
        _open.add(self)

    def __call__(self) -> None:
        if connections[self.edits.using].in_atomic_block:  # a test simulates the commit, and will roll back
            return
        _open.discard(self)
        if not (self.is_dropped or self.edits.is_committed):
            self.edits.is_committed = True
            self.edits.on_commit(self.edits, self.latest.version)


class Edits:
    """All edits of one open transaction. Before the commit, no other transaction can get their number.

    on_commit: called once they are committed, with the version of the first ones: others may have been rolled back.
    latest: the version with the latest number. A savepoint's rollback gives back that of the edits before it.
    is_named: the edits have a summary, so that single edits need none.
    """

    def __init__(self, using: str, version: Version, on_commit: Callable[[Edits, Version], None]) -> None:
        self.using, self.on_commit, self.latest = using, on_commit, Numbered(version)
        self.is_named = self.is_committed = False
        self.add()

    def add(self) -> None:
        """Add one more edit: rules that were read before it are outdated."""
        for savepoints, mark in _marks(self.using)[-1:]:
            if savepoints == {*connections[self.using].savepoint_ids}:
                mark.rules = None
                return
        transaction.on_commit(_Mark(self), using=self.using)

    def begin_version(self, version: Version) -> None:
        """Add one more edit, which has its own number."""
        self.add()
        self.update(Numbered(version))

    def update(self, latest: Numbered) -> None:
        """Replace what is known of the latest version."""
        self.latest = _marks(self.using)[-1][1].latest = latest

    def drop_version(self) -> None:
        """Drop the latest number with its edits, which have changed nothing."""
        for _, mark in _marks(self.using):
            mark.is_dropped = mark.latest.version == self.latest.version
        edits_of(self.using)

    def name(self, summary: Callable[[], str], author: Any = None, reason: str = "") -> None:
        """Set summary, author and reason of the latest edit. summary: only called if the maximum is not reached."""
        latest = self.latest
        texts = filter(None, [summary()] if latest.count < MAX_NAMED else [])
        named, count = (*latest.named, *texts), latest.count + 1
        author, reason = latest.author or author, latest.reason or reason
        self.update(replace(latest, author=author, reason=reason, named=named, count=count))

    def rules(self, load: Callable[[], RuleSet]) -> RuleSet:
        """Return the rules as this transaction sees them. load: reads them, once after each edit."""
        mark = _marks(self.using)[-1][1]
        if mark.rules is None:
            mark.rules = load()
            # Its number may never be committed. It need not be compared either: the transaction still has the lock of
            # its number, so no other one can have committed a later one.
            mark.rules.compared_as = None
        return mark.rules


#: Marks live as long as they wait for the commit.
_open: Final[WeakSet[_Mark]] = WeakSet()
#: Not empty if any thread may have an open transaction that has edited rules. Every request tests it.
any_open: Final[Collection[object]] = _open.data  # type: ignore[attr-defined]


def edits_of(using: str) -> Edits | None:
    """Return the edits of this thread's open transaction; `None` if there are none, or all were rolled back."""
    for _, mark in _marks(using)[-1:]:
        mark.edits.latest = mark.latest
        return mark.edits
    return None


def _marks(using: str) -> list[tuple[set[str], _Mark]]:
    """Return the edits of the open transaction that were not rolled back, each with its savepoints."""
    found = [(each[0], each[1]) for each in connections[using].run_on_commit if isinstance(each[1], _Mark)]
    return [each for each in found if not each[1].is_dropped]
