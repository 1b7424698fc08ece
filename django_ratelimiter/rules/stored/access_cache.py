"""The current access entries, cached by each process for TIER_CACHE_SECONDS."""

from __future__ import annotations

from typing import Final

from django.db import Error
from django.db.models import Q
from django.utils import timezone

from ...logs import logger
from ...values.access import NOBODY, AccessList, AccessRecord
from ...values.terminal import visible
from ..ttl_cache import NoAnswer, TableCache
from . import tables
from .tables import models

#: Maximum number of entries in one process; the latest are used.
MAX_ENTRIES: Final = 50_000


def forget() -> None:
    """Drop the cached entries: the next request reads them again."""
    global _latest, _copied
    _latest, _copied = ([], NOBODY), None
    _entries.forget()


def use_copy(entries: AccessList) -> None:
    """Use these entries while the database cannot be read."""
    global _copied
    _copied = entries


def records() -> list[AccessRecord]:
    """Return the entries that have not expired, the latest first."""
    rows = models.AccessEntry.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now())).order_by("-pk")
    found = rows.values_list("action", "kind", "value", "expires_at", "reason", "pk")[: MAX_ENTRIES + 1]
    if len(found) > MAX_ENTRIES:
        logger.error("There are more than %s access entries; the oldest have no effect.", MAX_ENTRIES)
    return [
        AccessRecord(action, kind, value, end.timestamp() if end else None, reason, pk)
        for action, kind, value, end, reason, pk in found[:MAX_ENTRIES]
    ]


def _find() -> AccessList:
    """Return the entries that have not expired; the same list as before if nothing has changed."""
    global _latest, _copied
    try:
        tables.must_exist("AccessEntry")
        found, _copied = records(), None
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
_entries = TableCache(_find, NOBODY, "Access entries")

#: Returns the list of callers that are allowed or denied before any rule. No query when cached.
access_list: Final = _entries.get
