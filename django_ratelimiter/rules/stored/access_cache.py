"""The current access entries, cached by each process for TIER_CACHE_SECONDS."""

from __future__ import annotations

from typing import Any, Final

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
    _latest, _copied = ((), NOBODY), None
    _entries.forget()


def use_copy(entries: AccessList) -> None:
    """Use these entries while the database cannot be read."""
    global _copied
    _copied = entries


def rows() -> list[tuple[Any, ...]]:
    """Return the fields of the entries as JSON can hold them, without the reasons."""
    return [(*fields, end and end.timestamp(), "", pk) for *fields, end, _, pk in _read()]


def _read() -> tuple[Any, ...]:
    rows = models.AccessEntry.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now())).order_by("-pk")
    found = tuple(rows.values_list("action", "kind", "value", "expires_at", "reason", "pk")[: MAX_ENTRIES + 1])
    if len(found) > MAX_ENTRIES:
        logger.error("There are more than %s access entries; the oldest have no effect.", MAX_ENTRIES)
        found = found[:MAX_ENTRIES]
    return found


def _find() -> AccessList:
    """Return the entries that have not expired; the same list as before if nothing has changed."""
    global _latest, _copied
    try:
        tables.must_exist("AccessEntry")
        found, _copied = _read(), None
    except (Error, NoAnswer):
        if _copied is None:
            raise
        return _copied
    if found != _latest[0]:
        _latest = found, _list_of(found)
    return _latest[1]


def _list_of(rows: tuple[Any, ...]) -> AccessList:
    entries = AccessList(
        AccessRecord(action, kind, value, end and end.timestamp(), reason, pk)
        for action, kind, value, end, reason, pk in rows
    )
    for record, why in entries.left_out:
        logger.error("The access entry of %s %s is not in force: %s", record.kind, visible(record.value[:8]), why)
    return entries


_latest: tuple[tuple[Any, ...], AccessList] = (), NOBODY
_copied: AccessList | None = None
_entries = TableCache(_find, NOBODY, "Access entries")

#: Returns the list of callers that are allowed or denied before any rule. No query when cached.
access_list: Final = _entries.get
