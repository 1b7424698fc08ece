"""The rule set's versions: each transaction that edits rules gets a number under a row lock, and is published.

Because of the lock, numbers are committed in order. A version's snapshot is a copy of the rows under its number, so it
never contains half of an edit. `editing` stores it in the transaction itself. After edits outside of `editing`, or
after its end, the snapshot is stored right after the commit; until then, processes read the rows.
After that the version is published: the engine then tells processes with an older version.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django.db import Error, connections, transaction
from django.db.models import F
from django.utils.asyncio import async_unsafe
from django.utils.translation import gettext_lazy

from ...backend import get_engine
from ...conf import settings
from ...databases import is_beside_users, lock_at_once, waiting_at_most
from ...engine.base import Version
from ...exceptions import EngineUnavailable
from ...logs import logger
from ...signals import rules_committed
from ..ruleset import RuleSet, Snapshot
from . import published, storage, uncommitted
from .tables import models
from .uncommitted import Edits, Numbered

PUBLISH_ATTEMPTS: Final = 1 + len(published.PAUSES)

UNREACHABLE: Final = gettext_lazy(
    "Saved, not yet in force everywhere: Redis could not be reached. This is retried each time usage is collected."
)

_published = threading.local()


@contextmanager
def editing(author: Any = None, summary: str = "", reason: str = "", *, always: bool = False) -> Iterator[None]:
    """Number all edits of rules, limits and tiers in this block as one new version, which is published on commit.

    It takes the lock first, so that two editors wait for each other and cannot deadlock. Within another `editing` block
    it does nothing. author: a user, or `None` for a command or a script. reason: why, in the author's words.
    If the block changed no rule, there is no new version, unless `always`; the latest is published once more.
    """
    using = storage.primary()
    edits = uncommitted.edits_of(using)
    if edits is not None and edits.is_named:
        yield
        edits.add()
        return
    with transaction.atomic(using=using):
        edits = _numbered(using, fresh=True)
        edits.name(lambda: summary, author, reason)
        edits.is_named = True
        try:
            yield
        finally:
            edits.is_named = False
        edits.add()
        latest = edits.latest
        snapshot = storage.snapshot_of(latest.version)
        if not always and snapshot and _is_that_before(latest.version, snapshot):
            storage.state().update(number=F("number") - 1)  # under the lock, so nobody has seen it
            edits.drop_version()
            transaction.on_commit(republish, using=using)
            return
        _store(using, latest.version, snapshot, latest)
        edits.update(replace(latest, is_stored=True))


def number_first(**_signal: Any) -> None:
    """Take the number and its lock before a row is written, so that no transaction with the lock waits for a row.

    Outside of a transaction, `number` does it afterwards.
    """
    using = storage.primary()
    if connections[using].in_atomic_block:
        _numbered(using)


def number(summary: Callable[[], str]) -> None:
    """Number a row that was just written: one version for everything that the open transaction saves and deletes."""
    using = storage.primary()
    if not connections[using].in_atomic_block:
        with editing(summary=summary()):
            return
    edits = _numbered(using)
    if not edits.is_named:
        edits.name(summary)


def number_anew() -> None:
    """Take a number later than any before: the row with the latest one was flushed, or overwritten by a fixture."""
    using = storage.primary()
    with transaction.atomic(using=using):
        edits = _numbered(using)
        latest = [edits.latest.version.epoch, *storage.snapshots().values_list("epoch", flat=True)[:1]]
        begun = max(_now_ms(), *(epoch + 1 for epoch in latest))
        storage.state().update(number=F("number") + 1, epoch=begun, published=False)
        edits.begin_version(storage.committed_version())


def invalidate(author: Any = None, summary: str = "") -> int:
    """Take a new snapshot and return its number. Call it after `update()` or `bulk_create`, which send no signals."""
    with editing(author, summary, always=True):
        pass
    return storage.committed_version().number


def switch_enforcement(enabled: bool, author: Any = None, reason: str = "") -> bool:
    """Stop or resume all enforcement, as a version; False if there was nothing to change.

    Then the current version is published once more: if an operator repeats this, it may have had no effect before.
    """
    if storage.enforcement_enabled() == enabled:
        transaction.on_commit(republish, using=storage.primary())  # uncommitted versions must not be published
        return False
    with editing(author, "enforcement resumed" if enabled else "enforcement stopped", reason):
        storage.state().update(enforcement_enabled=enabled)
    return True


def begin_epoch(behind: Version) -> None:
    """Start a new epoch, because the engine holds a later version than this database has ever committed.

    The reason is a restored backup, or another database with the same namespace. Does not wait for edits in
    progress: raises OperationalError then. In the caller's transaction it takes effect, and is logged, at the commit.
    """
    using = storage.primary()
    with waiting_at_most(settings.DEADLINE_MS / 1_000, using), transaction.atomic(using=using):
        lock_at_once(storage.state())
        numbered = storage.state().exists()  # False for a database whose rows were flushed
        version = _next_number(using)
        if numbered and version.order > behind.order:  # another process has done this, or the number was later before
            transaction.set_rollback(True, using=using)
            return
        begun = Version(version.number, max(_now_ms(), behind.epoch + 1))
        takeovers = storage.state().values_list("takeovers", flat=True).get()
        soon = published.TURN_MS if takeovers < 2 else published.TURNS_MS
        takeovers = takeovers + 1 if begun.epoch - version.epoch < soon else 1
        storage.state().update(epoch=begun.epoch, takeovers=takeovers, published=False)
        edits = Edits(using, begun, _on_commit)
        # The same rules under a later number, without a row: two databases in conflict must not fill a table.
        if storage.snapshots(version._replace(number=version.number - 1)).update(
            number=begun.number, epoch=begun.epoch
        ):
            edits.update(replace(edits.latest, is_stored=True))
        if numbered:
            transaction.on_commit(partial(_log_new_epoch, behind, takeovers), using=using)


def _log_new_epoch(behind: Version, takeovers: int) -> None:
    """Log the first takeover, and the one that shows that two databases take turns; not each of thousands."""
    if takeovers == 2:
        logger.error(published.Held.IN_TURNS.problem)
    elif takeovers == 1:
        logger.error(
            "The engine held rule-set version %s, later than the database's: a restored backup, or two databases "
            "with one NAMESPACE. The database's rules are in force again.",
            behind,
        )


def publish(version: Version, *, anew: bool = False) -> bool:
    """Make a committed version current; False if it was not, which is logged, see `publish_problem`.

    Not if the engine could not be reached, or does not hold versions of this database, unless `anew`.
    In a transaction that edits rules it does nothing: its rules may never be committed.
    """
    if uncommitted.edits_of(storage.primary()):
        return True
    for attempt in range(1, PUBLISH_ATTEMPTS + 1):
        try:
            in_force = published.version_in_force(engine := get_engine())
            if not anew and (problem := _why_not_to_publish(in_force)):
                _published.problem = problem
                logger.warning("Version %d of the rules was not published: %s", version.number, problem)
                return False
            engine.publish(version)
        except EngineUnavailable as error:
            cause = error
            if attempt < PUBLISH_ATTEMPTS:  # the first attempt of a process waits for its connection, which is no error
                logger.info("Publishing version %d again, after attempt %d: %s", version.number, attempt, error)
                time.sleep(published.PAUSES[attempt - 1])
        else:
            _published.problem = ""
            if in_force is not None and in_force.order > version.order:
                with suppress(Error):  # another editor does this as well
                    begin_epoch(in_force)
            published.write_copy()
            if not published.is_memory():
                _note_published()
            return True
    _published.problem = UNREACHABLE
    text = "Version %d of the rules could not be published, in %d attempts: %s"
    logger.warning(text, version.number, PUBLISH_ATTEMPTS, cause)
    return False


def _why_not_to_publish(in_force: Version | None) -> str:
    """Return why this is not the site's engine; an epoch that was never published may replace any other."""
    held = published.compared(in_force)
    if held in (published.Held.OURS, published.Held.IN_TURNS) or storage.state().filter(published=False).exists():
        return ""
    return f"Saved, but Redis was not told. {held.problem}"


def _note_published() -> None:
    with suppress(Error):  # it is published all the same
        if (unnoted := storage.state().filter(published=False)).exists():
            unnoted.update(published=True)


def republish(*, anew: bool = False) -> bool:
    """Publish the latest committed version again, for example after a failed publishing or a killed process.

    anew: also if the engine holds none.
    """
    using = storage.primary()
    if uncommitted.edits_of(using):
        return True
    version = storage.committed_version()
    if version.number and not storage.snapshots(version).exists():
        _store(using, version, storage.snapshot_of(version))
    return publish(version, anew=anew)


def last_publish_failed() -> bool:
    """Return whether this thread's latest publishing failed: the version is saved, but not yet used everywhere."""
    return bool(publish_problem())


def publish_problem() -> str:
    """Return why this thread's latest publishing failed; empty = it did not."""
    return str(getattr(_published, "problem", ""))


def uncommitted_rules() -> RuleSet | None:
    """Return the rules as edited in this thread's open transaction; `None` if it has no edits."""
    return _rules_of_this_transaction() if uncommitted.any_open else None


@async_unsafe("Rules are being edited, perhaps in the transaction of this task; `limiter.acheck` asks in a thread.")
def _rules_of_this_transaction() -> RuleSet | None:
    edits = uncommitted.edits_of(storage.primary())
    return None if edits is None else edits.rules(storage.load)


def _numbered(using: str, *, fresh: bool = False) -> Edits:
    """Add one edit to those of this transaction, and return them all.

    It gets a number if it is the first one, if the snapshot of the last number is stored already, or if `fresh`.
    """
    edits = uncommitted.edits_of(using)
    if edits is None:
        return Edits(using, _next_number(using), _on_commit)
    if fresh or edits.latest.is_stored:
        edits.begin_version(_next_number(using))
    else:
        edits.add()
    return edits


def _next_number(using: str) -> Version:
    """Raise the number by an UPDATE, which takes the lock on SQLite and PostgreSQL alike."""
    state = models.RuleSetState.objects.using(using).filter(pk=1)
    if not state.update(number=F("number") + 1):  # a database whose rows were flushed
        models.RuleSetState.objects.using(using).get_or_create(pk=1, defaults={"epoch": _now_ms()})
        state.update(number=F("number") + 1)
    return Version(*state.values_list("number", "epoch").get())


def _is_that_before(version: Version, snapshot: Snapshot) -> bool:
    """Return whether the version before this one is stored with the same snapshot, which contains all rows."""
    before = storage.snapshots(version._replace(number=version.number - 1)).values_list("snapshot", flat=True).first()
    is_whole = not snapshot["left_out"]  # a rule that cannot be enforced may have changed
    return before is not None and is_whole and json.loads(json.dumps(snapshot)) == before


def _store(using: str, version: Version, snapshot: Snapshot | None, edited: Numbered | None = None) -> None:
    """Store the snapshot of the latest version, unless another process has. `None` = it is not the latest any more.

    edited: who has edited what; `None` = not known.
    """
    if snapshot is not None:
        author, summary, reason = (edited.author, edited.summary, edited.reason) if edited else (None, "", "")
        row = models.RuleSetVersion(
            number=version.number,
            epoch=version.epoch,
            author=author if author and is_beside_users(models.RuleSetVersion) else None,
            summary=summary[: models.RuleSetVersion.summary.field.max_length],
            reason=reason[: models.RuleSetVersion.reason.field.max_length],
            snapshot=snapshot,
        )
        models.RuleSetVersion.objects.using(using).bulk_create([row], ignore_conflicts=True)


def _on_commit(edits: Edits, version: Version) -> None:
    """Publish what was just committed. version: of the first edits."""
    try:
        version = _settled(edits, version)
    except Error:  # processes read the rows instead
        logger.exception("The snapshot of %s could not be stored.", version)
    except Exception:  # processes keep their version
        logger.exception("The rules cannot be compiled, so %s is not in force.", version)
        _published.problem = UNREACHABLE
        return
    rules_committed.send(sender=models.RuleSetVersion, version=version)
    publish(version)


def _settled(edits: Edits, first: Version) -> Version:
    """Return the latest committed version; if it is from these edits, its snapshot is stored by now."""
    version, latest = storage.committed_version(), edits.latest
    if version.order < first.order:
        # A savepoint that was made without `atomic` was rolled back. Django does not report it, and the number is lost.
        with editing(latest.author, latest.summary, latest.reason):
            pass
        return storage.committed_version()
    is_of_these = version.order <= latest.version.order  # else it is another, later one
    if is_of_these and not storage.snapshots(version).exists():
        is_last = version == latest.version  # else that one was rolled back with its savepoint
        _store(edits.using, version, storage.snapshot_of(version), latest if is_last else None)
    return version


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
