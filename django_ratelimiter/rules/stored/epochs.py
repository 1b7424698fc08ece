"""Whether the engine holds versions of this database. Whoever publishes, collects, forgets or looks up asks first.

Settings with another Redis or NAMESPACE than the site's lead to one that holds no version, or another database's.
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from django.db import router

from ...backend import get_engine, server_in_words
from ...conf import settings
from ...engine.base import Engine, Version
from ...engine.memory import MemoryEngine
from ...exceptions import EngineUnavailable, StaleRules
from ..ruleset import NO_VERSION
from . import storage, tables

#: Seconds between attempts: the first one of a process may wait for its connection longer than a decision does.
PAUSES: Final = (0.1, 0.4)

#: Milliseconds: two databases take turns if an epoch is begun so soon after another, and until so long after the last.
TURN_MS: Final = 60_000
TURNS_MS: Final = 3_600_000

_NOT_THE_SITES: Final = "these settings name another Redis, NAMESPACE or database than the site's"


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
    for pause in PAUSES:
        with suppress(EngineUnavailable):
            return compared(version_in_force(get_engine()))
        time.sleep(pause)
    return compared(version_in_force(get_engine()))


def compared(version: Version | None) -> Held:
    """Return how the version that the engine holds compares with this database: one query. `None` = it holds none."""
    if not tables.exists("RuleSetState", router.db_for_write):
        return Held.OURS
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
    nothing. If there are several shards, it is the version in one of them: each is published in all.
    """
    exact: Engine = getattr(engine, "engine", engine)
    try:
        exact.check((), version=NO_VERSION)
    except StaleRules as stale:
        return None if stale.number is None else Version(stale.number, stale.epoch)
    return NO_VERSION


def is_memory() -> bool:
    """Return whether each process has an engine of its own, in its memory."""
    engine: Any = get_engine()
    return isinstance(engine, MemoryEngine)
