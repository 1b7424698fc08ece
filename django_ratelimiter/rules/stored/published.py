"""What the engine holds of this database: versions, and a copy of the rules for processes that cannot read it.

Settings with another Redis or NAMESPACE than the site's lead to an engine that holds no version, or another database's.
So whoever publishes, collects, forgets or looks up asks first. The copy, which others never read, has the latest
snapshot with its version, and the access entries without their reasons, signed with SECRET_KEY.
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.core import signing
from django.db import Error, router

from ...backend import get_engine, server_in_words
from ...conf import settings
from ...engine.base import Engine, Version
from ...engine.memory import MemoryEngine
from ...exceptions import EngineUnavailable, StaleRules
from ...logs import logger
from ...values.access import AccessList, AccessRecord
from ..ruleset import NO_VERSION, RuleSet
from . import storage, tables, uncommitted

#: Seconds between attempts: the first one of a process may wait for its connection longer than a decision does.
PAUSES: Final = (0.1, 0.4)

#: Milliseconds: two databases take turns if an epoch is begun so soon after another, and until so long after the last.
TURN_MS: Final = 60_000
TURNS_MS: Final = 3_600_000

_NOT_THE_SITES: Final = "these settings name another Redis, NAMESPACE or database than the site's"

#: Part of each signature. A later format has another, so that no process reads what it does not know.
FORMAT: Final = "django_ratelimiter.rules.1"

_latest: tuple[str, Copy | None] | None = None  # the text that was read last, and what it says
_entries_at = float("-inf")


class Held(Enum):
    """What the engine holds, compared with this database; the value says what is wrong."""

    OURS = ""
    NONE = f"{{redis}} holds no version of the rules: it was flushed, or {_NOT_THE_SITES}."
    OTHER = (
        f"{{redis}} holds the rules of another database: {_NOT_THE_SITES}; or the database was restored or made anew, "
        "and the site's processes must be restarted."
    )
    IN_TURNS = (
        "{redis} holds the rules of two databases in turns, so usage is not collected until an hour after the last "
        "turn. Give each site its own NAMESPACE, or its own database of Redis."
    )
    NOWHERE = f"RATELIMITER names no Redis, and the rules were published to one: {_NOT_THE_SITES}."

    @property
    def problem(self) -> str:
        """What is wrong, and the likely reason; empty = nothing."""
        return self.value.format(redis=f"NAMESPACE {settings.NAMESPACE!r} of {server_in_words()}") if self.value else ""


def held() -> Held:
    """Return what the engine holds. Raises EngineUnavailable if it does not answer, after three attempts."""
    if not tables.exists("RuleSetState", router.db_for_write):
        return Held.OURS
    for pause in PAUSES:
        with suppress(EngineUnavailable):
            return compared(version_in_force(get_engine()))
        time.sleep(pause)
    return compared(version_in_force(get_engine()))


def compared(version: Version | None) -> Held:
    """Return how the version that the engine holds compares with this database: one query. `None` = it holds none."""
    state = storage.state().values_list("epoch", "takeovers", "published").first()
    if state is None:  # its rows were flushed
        return Held.OURS
    epoch, takeovers, published = state
    if takeovers > 1 and time.time_ns() // 1_000_000 - epoch < TURNS_MS:
        return Held.IN_TURNS
    if is_memory():
        return Held.NOWHERE if published else Held.OURS
    if version is None:
        return Held.NONE if published else Held.OURS
    return Held.OURS if version.epoch == epoch else Held.OTHER


def version_in_force(engine: Engine) -> Version | None:
    """Return the version that the engine compares calls with; `None` = it holds none. Raises EngineUnavailable.

    A call with a version before the first one is always stale, so the engine returns its own and changes
    nothing. If there are several shards, one is asked, as each version is published in all; and the others, if it holds
    none: its node may have come back empty.
    """
    exact: Any = getattr(engine, "engine", engine)
    try:
        exact.check((), version=NO_VERSION)
    except StaleRules as stale:
        if stale.number is not None:
            return Version(stale.number, stale.epoch)
        shards = exact.versions() if hasattr(exact, "versions") else ()
        return max(filter(None, shards), key=attrgetter("order"), default=None)
    return NO_VERSION


def is_memory() -> bool:
    """Return whether each process has an engine of its own, in its memory."""
    engine: Any = get_engine()
    return isinstance(engine, MemoryEngine)


class Copy(NamedTuple):
    """The rules and the access entries."""

    rules: RuleSet
    entries: AccessList


def write_copy() -> None:
    """Store the copy in the engine, if it keeps one. Errors are only logged: the rules are in force without it."""
    try:
        engine: Any = get_engine()
        for _ in range(storage.READINGS if hasattr(engine, "write_rules") else 0):
            version = storage.committed_version()
            if version == NO_VERSION or uncommitted.edits_of(storage.primary()):  # flushed, or uncommitted
                return
            stored = storage.snapshots(version).values_list("snapshot", flat=True).first()
            if (snapshot := stored or storage.snapshot_of(version)) is not None:
                entries = [record._replace(reason="") for record in storage.access_entries()]
                content = [*version, snapshot, entries]
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
        write_copy()


def read_copy() -> Copy | None:
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
