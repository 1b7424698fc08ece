"""The rule set's versions: each edit is numbered under a row lock, stored as one snapshot, and published.

The lock makes numbers commit in order; the snapshot is taken under it, so none holds half of two edits. Publishing
follows the commit: a process that still has an older version is then told so by the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.utils.asyncio import async_unsafe

from ..connection import get_engine
from ..engine.base import Version
from ..exceptions import EngineUnavailable
from ..models import RuleSetState, RuleSetVersion
from ..signals import rules_committed
from .compiler import snapshot_of_rows
from .ruleset import NO_VERSION, RuleSet

logger = logging.getLogger("django_ratelimiter")

PUBLISH_ATTEMPTS: Final = 3
#: Seconds between them: a connection may take longer to make than a decision may wait, and is ready then.
PUBLISH_PAUSES: Final = (0.1, 0.4)

_editing: ContextVar[bool] = ContextVar("django_ratelimiter_editing", default=False)
_published = threading.local()


class _UncommittedEdit:
    """An edit whose transaction is still open, and the rules as that transaction alone sees them."""

    def __init__(self, on_commit: Callable[[], None]) -> None:
        self.on_commit = on_commit
        self.rules: RuleSet | None = None

    def is_open(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether the transaction was neither committed nor rolled back: both forget what waits for the commit."""
        return any(waiting is self.on_commit for _, waiting, *_ in connection.run_on_commit)


#: The edits of each connection's open transaction, the latest last: a savepoint's rollback undoes only the latest.
_uncommitted: WeakKeyDictionary[BaseDatabaseWrapper, list[_UncommittedEdit]] = WeakKeyDictionary()


@contextmanager
def editing(author: Any = None, summary: str = "") -> Iterator[None]:
    """Number all edits of rules, limits and tiers within as one new version, which is published on commit.

    The lock is taken first, so that two editors queue up here and never deadlock later. Within another `editing`
    it adds nothing. author: a user, or `None` for a command or a script.
    """
    if _editing.get():
        yield
        return
    using = primary()
    with transaction.atomic(using=using):
        version = _next_number(using)
        token = _editing.set(True)
        try:
            yield
        finally:
            _editing.reset(token)
        _store(using, version, author, summary)


def invalidate(author: Any = None, summary: str = "") -> int:
    """Take a new snapshot and return its number. Needed after `update()` or `bulk_create`, which send no signals."""
    with editing(author, summary):
        pass
    return committed_version().number


def switch_enforcement(enabled: bool, author: Any = None) -> bool:
    """Stop or resume all enforcement, as one version of its own; False if it was so already.

    Then the version in force is published once more, for whoever asks again may have seen no effect.
    """
    if enforcement_enabled() == enabled:
        transaction.on_commit(republish, using=primary())  # what is not committed yet must not be published
        return False
    with editing(author, "enforcement resumed" if enabled else "enforcement stopped"):
        RuleSetState.objects.using(primary()).filter(pk=1).update(enforcement_enabled=enabled)
    return True


def enforcement_enabled() -> bool:
    """Whether rules are enforced, as the primary database says; a query of one row."""
    states = RuleSetState.objects.using(primary()).filter(pk=1)
    return states.values_list("enforcement_enabled", flat=True).first() is not False


def is_editing() -> bool:
    """Whether the current code runs within `editing`, which will number what is saved."""
    return _editing.get()


def committed_version() -> Version:
    """The latest version in the primary database."""
    found = _versions().values_list("number", "epoch").first()
    return Version(*found) if found else NO_VERSION


def load() -> RuleSet:
    """The latest rule set of the primary database, in one SELECT."""
    found = _versions().values_list("number", "epoch", "snapshot").first()
    if not found:
        return RuleSet(NO_VERSION)
    number, epoch, snapshot = found
    return RuleSet.from_snapshot(snapshot, Version(number, epoch))


def begin_epoch(behind: Version) -> None:
    """Start a new count of versions, because the engine holds a later one than this database ever committed.

    That is a restored backup, or another database that publishes under the same namespace.
    """
    using = primary()
    with transaction.atomic(using=using):
        version = _next_number(using)  # waits for an edit under way, whose number may be the one that was seen
        if committed_version().order >= behind.order:
            transaction.set_rollback(True, using=using)
            return
        version = Version(version.number, max(_now_ms(), behind.epoch + 1))
        RuleSetState.objects.using(using).filter(pk=1).update(epoch=version.epoch)
        latest = _versions().values_list("pk", flat=True).first()
        if latest is None:
            _store(using, version, None, "")
        else:  # the same rules under a later number: two databases in dispute shall not fill a table
            RuleSetVersion.objects.using(using).filter(pk=latest).update(number=version.number, epoch=version.epoch)
            _announce(using, version)
    logger.error(
        "The engine held rule-set version %s, later than the database's: a restored backup, or two databases "
        "with one NAMESPACE. The database's rules are in force again.",
        behind,
    )


def publish(version: Version) -> bool:
    """Put a committed version in force; False if the engine could not be told, which is logged."""
    for attempt in range(1, PUBLISH_ATTEMPTS + 1):
        try:
            get_engine().publish(version)
        except EngineUnavailable as error:
            logger.warning("Publishing %s, attempt %d of %d: %s", version, attempt, PUBLISH_ATTEMPTS, error)
            if attempt < PUBLISH_ATTEMPTS:
                time.sleep(PUBLISH_PAUSES[attempt - 1])
        else:
            _published.failed = False
            return True
    _published.failed = True
    return False


def republish() -> bool:
    """Publish the latest committed version once more; repairs what a failed publishing left."""
    return publish(committed_version())


def last_publish_failed() -> bool:
    """Whether the latest publishing of this thread failed: saved, but not yet in force everywhere."""
    return getattr(_published, "failed", False)


def uncommitted_rules() -> RuleSet | None:
    """The rules as edited in this thread's open transaction; `None` if it has edited none."""
    # To ask it for its length would take longer than all the rest where nobody is editing.
    return _rules_of_this_transaction() if _uncommitted.data else None  # type: ignore[attr-defined]


@async_unsafe("Rules are being edited; whether in the transaction of this task, a thread can tell.")
def _rules_of_this_transaction() -> RuleSet | None:
    _forget_ended_transactions()
    connection = connections[primary()]
    edits = _uncommitted.get(connection, [])
    while edits and not edits[-1].is_open(connection):
        edits.pop()
    if not edits:
        _uncommitted.pop(connection, None)
        return None
    if edits[-1].rules is None:
        edits[-1].rules = load()
    return edits[-1].rules


def _forget_ended_transactions() -> None:
    for connection, edits in list(_uncommitted.items()):
        if not any(edit.is_open(connection) for edit in edits):
            _uncommitted.pop(connection, None)


def primary() -> str:
    """The alias of the database that rules are written to; a replica may be behind."""
    return router.db_for_write(RuleSetVersion)


def _versions() -> Any:
    return RuleSetVersion.objects.using(primary()).order_by("-epoch", "-number")


def _next_number(using: str) -> Version:
    """Raise the number by an UPDATE, which takes the lock on SQLite and PostgreSQL alike."""
    state = RuleSetState.objects.using(using).filter(pk=1)
    if not state.update(number=F("number") + 1):  # a database whose rows were flushed
        RuleSetState.objects.using(using).get_or_create(pk=1, defaults={"epoch": _now_ms()})
        state.update(number=F("number") + 1)
    return Version(*state.values_list("number", "epoch").get())


def _store(using: str, version: Version, author: Any, summary: str) -> None:
    RuleSetVersion.objects.using(using).create(
        number=version.number,
        epoch=version.epoch,
        author=author,
        summary=summary[: RuleSetVersion.summary.field.max_length],
        snapshot=snapshot_of_rows() | {"enforcement": enforcement_enabled()},
    )
    _announce(using, version)


def _announce(using: str, version: Version) -> None:
    """Put a version in force once it is committed; until then only its own transaction sees it."""
    connection = connections[using]

    def on_commit() -> None:
        if not connection.in_atomic_block:  # else a test only plays a commit, and will roll back
            _uncommitted.pop(connection, None)
        rules_committed.send(sender=RuleSetVersion, version=version)
        publish(version)

    transaction.on_commit(on_commit, using=using)
    _uncommitted.setdefault(connection, []).append(_UncommittedEdit(on_commit))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
