"""The current access entries, cached by each process for TIER_CACHE_SECONDS."""

from __future__ import annotations

from typing import Final

from django.db import Error

from ...logs import logger
from ...values.access import NOBODY, AccessList, AccessRecord
from ...values.terminal import visible
from ..ttl_cache import NoAnswer, TableCache
from . import storage, tables


def forget() -> None:
    """Drop the cached entries: the next request reads them again."""
    global _latest, _copied
    _latest, _copied = ([], NOBODY), None
    _entries.forget()


def use_copy(entries: AccessList) -> None:
    """Use these entries while the database cannot be read."""
    global _copied
    _copied = entries


def _find() -> AccessList:
    """Return the entries that have not expired; the same list as before if nothing has changed."""
    global _latest, _copied
    try:
        tables.must_exist("AccessEntry")
        found, _copied = storage.access_entries(), None
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
