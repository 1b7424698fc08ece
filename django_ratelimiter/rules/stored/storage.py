"""The rule set in the primary database: number, snapshots, and rows if there is no snapshot yet; and access entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.db import Error, connections, router
from django.db.models import OuterRef, Q, Subquery
from django.utils import timezone

from ...databases import as_committed, read_beside
from ...engine.base import Version
from ...logs import logger
from ...values.access import NOBODY, AccessList, AccessRecord
from ...values.terminal import visible
from ..ruleset import NO_VERSION, RuleSet, Snapshot
from ..ttl_cache import NoAnswer, TableCache
from . import tables
from .compiler import snapshot_of_rows
from .tables import models

#: How often rows are read again if their number changes meanwhile.
READINGS: Final = 5

#: Maximum number of access entries in one process; the latest are used.
MAX_ENTRIES: Final = 50_000

#: The rules if the app is not installed, or its tables do not exist. They were never edited, so calls of
#: the engine do not carry their version: another database may have published a later one there.
NO_TABLES: Final = RuleSet(NO_VERSION, is_versioned=False)


def enforcement_enabled() -> bool:
    """Return whether enforcement is on in the primary database; a query of one row."""
    if not tables.exists("RuleSetState", router.db_for_write):
        return True
    return state().values_list("enforcement_enabled", flat=True).first() is not False


def committed_version() -> Version:
    """Return the latest version in the primary database; in a transaction that edits rules, its own."""
    found = state().values_list("number", "epoch").first() or snapshots().values_list("number", "epoch").first()
    return Version(*found) if found else NO_VERSION


def load() -> RuleSet:
    """Return the latest rule set of the primary database: its snapshot, in one SELECT, or the rows if it has none yet.

    If the rows cannot be read as rules, which is logged, or change all the time: the last snapshot.
    NO_TABLES if the primary database has no tables for rules yet.
    """
    if not tables.exists("RuleSetVersion", router.db_for_write):
        return NO_TABLES
    return _load()


def load_beside() -> RuleSet | None:
    """Return the latest committed rule set, read outside the open transaction; `None` = no transaction, or no answer.

    A transaction may only see the state of its first read: in SQLite's WAL mode, and with the isolation levels of other
    databases that use snapshots.
    """
    using = primary()
    if not connections[using].in_atomic_block:
        return None
    try:
        return read_beside(using, _load)
    except Error:  # such as a database in memory, which only this connection has
        return None


def _load() -> RuleSet:
    for _ in range(READINGS):
        latest = snapshots().filter(number=OuterRef("number"), epoch=OuterRef("epoch"))
        rows = state().annotate(snapshot=Subquery(latest.values("snapshot")))
        found = rows.values_list("number", "epoch", "snapshot").first()
        if found is None:  # a database whose rows were flushed
            break
        version, snapshot = Version(*found[:2]), found[2]
        if not version.number:  # with its epoch: Redis may hold a version of a deleted database
            return RuleSet(version)
        try:
            snapshot = snapshot or snapshot_of(version)
        except Error:
            raise
        except Exception:
            logger.exception("The rules cannot be compiled; the last version that could be compiled is used.")
            break
        if snapshot:
            return RuleSet.from_snapshot(snapshot, version)
    found = snapshots().values_list("snapshot", "number", "epoch").first()
    return RuleSet.from_snapshot(found[0], Version(*found[1:])) if found else RuleSet(NO_VERSION)


def current_rows() -> dict[str, Any]:
    """Return the rows as a snapshot, as last committed or edited by this transaction, with the switch."""
    return snapshot_of_rows(as_committed) | {"enforcement": enforcement_enabled()}


def snapshot_of(version: Version) -> dict[str, Any] | None:
    """Return the rows under this number; `None` if the number had changed before they were read.

    Edits change number and rows in one transaction. So if the number was the same before and after reading, nothing
    was committed in between. No lock is needed.
    """
    snapshot = snapshot_of_rows(as_committed)
    number, epoch, enforced = state().values_list("number", "epoch", "enforcement_enabled").get()
    return snapshot | {"enforcement": enforced} if (number, epoch) == version else None


def access_entries() -> list[AccessRecord]:
    """Return the access entries that have not expired, the latest first."""
    rows = models.AccessEntry.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now())).order_by("-pk")
    found = rows.values_list("action", "kind", "value", "expires_at", "reason", "pk")[: MAX_ENTRIES + 1]
    if len(found) > MAX_ENTRIES:
        logger.error("There are more than %s access entries; the oldest have no effect.", MAX_ENTRIES)
    return [
        AccessRecord(action, kind, value, end.timestamp() if end else None, reason, pk)
        for action, kind, value, end, reason, pk in found[:MAX_ENTRIES]
    ]


def _find_entries() -> AccessList:
    """Return the entries that have not expired; the same list as before if nothing has changed."""
    global _latest, _copied
    try:
        tables.must_exist("AccessEntry")
        found, _copied = access_entries(), None
    except (Error, NoAnswer):
        if _copied is None:
            raise
        return _copied
    known, entries = _latest
    if found != known:
        entries = AccessList(found)
        _latest = found, entries
        for record, why in entries.left_out:
            logger.error("The access entry of %s %s is not in force: %s", record.kind, visible(record.value[:8]), why)
    return entries


_latest: tuple[list[AccessRecord], AccessList] = [], NOBODY
_copied: AccessList | None = None
_entries = TableCache(_find_entries, NOBODY, "Access entries")

#: Returns the callers that are allowed or denied before any rule, cached for TIER_CACHE_SECONDS.
access_list: Final = _entries.get


def forget_entries() -> None:
    """Drop the cached access entries: the next request reads them again."""
    global _latest, _copied
    _latest, _copied = ([], NOBODY), None
    _entries.forget()


def use_copied_entries(entries: AccessList) -> None:
    """Use these access entries while the database cannot be read."""
    global _copied
    _copied = entries


def primary() -> str:
    """Return the alias of the database that rules are written to; a replica may be behind."""
    return router.db_for_write(models.RuleSetVersion)


def state() -> Any:
    """Return the only row, which contains the latest version, as a query set."""
    return models.RuleSetState.objects.using(primary()).filter(pk=1)


def snapshots(version: Version | None = None) -> Any:
    """Return the stored versions, the latest first, or only this one, as a query set."""
    rows = models.RuleSetVersion.objects.using(primary()).order_by("-epoch", "-number")
    rows = rows.prefetch_related("author")  # so that it is None if the user was deleted by SQL, not an error
    return rows if version is None else rows.filter(number=version.number, epoch=version.epoch)


def snapshots_until(version: Version) -> Any:
    """Return the stored versions up to this one, the latest first, as a query set."""
    earlier = Q(epoch__lt=version.epoch) | Q(epoch=version.epoch, number__lte=version.number)
    return snapshots().filter(earlier)


def in_chunks(versions: Any, count: int | None = None) -> Iterator[Snapshot]:
    """Return the snapshots of these versions, or of the first ones. Few are in memory at a time: each has all rules."""
    found: Iterator[Snapshot] = versions.values_list("snapshot", flat=True)[:count].iterator(chunk_size=5)
    return found
