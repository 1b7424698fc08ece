"""The copy of the rules in Redis, for processes that cannot read the database; others never read it.

It has the latest snapshot with its version, and the access entries without their reasons, signed with SECRET_KEY.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from django.core import signing
from django.db import Error

from ...backend import get_engine
from ...engine.base import Version
from ...exceptions import EngineUnavailable
from ...logs import logger
from ...values.access import AccessList, AccessRecord
from ..ruleset import NO_VERSION, RuleSet
from . import access_cache, storage, uncommitted

#: Part of each signature. A later format has another, so that no process reads what it does not know.
FORMAT: Final = "django_ratelimiter.rules.1"

_latest: tuple[str, Copy | None] | None = None  # the text that was read last, and what it says


_entries_at = float("-inf")


class Copy(NamedTuple):
    """The rules and the access entries."""

    rules: RuleSet
    entries: AccessList


def write() -> None:
    """Store the copy in the engine, if it keeps one. Errors are only logged: the rules are in force without it."""
    try:
        engine: Any = get_engine()
        for _ in range(storage.READINGS if hasattr(engine, "write_rules") else 0):
            version = storage.committed_version()
            if version == NO_VERSION or uncommitted.edits_of(storage.primary()):  # flushed, or uncommitted
                return
            stored = storage.snapshots(version).values_list("snapshot", flat=True).first()
            if (snapshot := stored or storage.snapshot_of(version)) is not None:
                content = [*version, snapshot, access_cache.rows()]
                engine.write_rules(signing.dumps(content, salt=FORMAT, compress=True))
            if storage.committed_version() == version:  # else this may have replaced a later copy
                return
    except (Error, EngineUnavailable) as error:
        logger.warning("The copy of the rules in Redis could not be renewed: %s", error)


def write_entries() -> None:
    """Store the copy after an access entry has changed: of many at once the first; the collector stores the others."""
    global _entries_at
    if time.monotonic() - _entries_at >= 1:
        _entries_at = time.monotonic()
        write()


def read() -> Copy | None:
    """Return the copy, the same object if it has not changed; `None` = there is none that this process can use.

    Raises EngineUnavailable.
    """
    global _latest
    engine: Any = get_engine()
    text = engine.read_rules() if hasattr(engine, "read_rules") else None
    if text is None:
        return None
    if _latest is None or _latest[0] != text:
        _latest = text, _parsed(text)
    return _latest[1]


def _parsed(text: str) -> Copy | None:
    try:
        number, epoch, snapshot, entries = signing.loads(text, salt=FORMAT)
        rules = RuleSet.from_snapshot(snapshot, Version(number, epoch))
        rules.is_copy = True
        return Copy(rules, AccessList(map(AccessRecord._make, entries)))
    except (signing.BadSignature, ValueError, LookupError, TypeError, AttributeError) as error:
        logger.error("The copy of the rules in Redis is not used, because this release did not sign it: %r", error)
        return None
