"""How the engine stands as this process sees it: one call that compares nothing and spends nothing.

And which processes decide by it, and which versions its shards hold: one pipeline for each node.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from ...backend import get_engine, server_in_words
from ...conf import settings
from ...engine.base import Engine, Version
from ...engine.breaker import open_breakers
from ...engine.local.engine import LocalFirstEngine
from ...exceptions import EngineUnavailable, StaleRules
from ...heartbeats import Heartbeat, pulse, read_fleet
from ...rules import cache
from ...rules.ruleset import NO_VERSION

#: How often the engine is asked: the first call of a process may find no connection yet, and that is no fault.
ATTEMPTS: Final = 2
#: Seconds between two attempts.
PAUSE: Final = 0.1

#: For so many seconds a process that did not reach Redis is pointed out.
OUTAGE_SECONDS: Final = 300.0


class Health(NamedTuple):
    """The answer of the engine, or why there was none.

    milliseconds: of the round trip; `None` = no answer. problem: why there was no answer. open_breakers: servers that
    this process does not ask at present. versions: those that its shards hold, one where it has none; `None` = a shard
    holds none; empty = no answer. unanswered: shards that gave no answer. processes: those heard of lately, this one
    first.
    """

    milliseconds: float | None
    problem: str
    open_breakers: int
    versions: Sequence[Version | None] = ()
    unanswered: int = 0
    processes: Sequence[Heartbeat] = ()

    @property
    def is_degraded(self) -> bool:
        """Return whether this process decides by the failure policies: the engine does not answer it."""
        return self.milliseconds is None or self.open_breakers > 0


def read_health(*, with_processes: bool = False) -> Health:
    """Ask the engine once, and once more where it had no connection yet. Never raises for an engine that is away.

    with_processes: ask for the versions of all shards and for the processes, too.
    """
    problem = ""
    for attempt in range(ATTEMPTS):
        try:
            began = time.perf_counter()
            version = version_in_force(get_engine())
            health = Health(1_000 * (time.perf_counter() - began), "", open_breakers(), (version,))
            return _with_processes(health) if with_processes else health
        except EngineUnavailable as error:
            problem = str(error)
        except ImproperlyConfigured as error:
            problem = str(error)
            break
        if open_breakers() or attempt == ATTEMPTS - 1:
            break
        time.sleep(PAUSE)
    return Health(None, problem, open_breakers())


def _with_processes(health: Health) -> Health:
    """Add what all shards say. Where that cannot be read, this process is the only one that is known."""
    own = cache.current_rules().version
    try:
        fleet = read_fleet(own)
    except EngineUnavailable as error:
        return health._replace(problem=str(error), processes=(pulse.heartbeat(own),))
    versions = fleet.versions or health.versions
    return health._replace(versions=versions, unanswered=fleet.unanswered, processes=fleet.heartbeats)


def version_in_force(engine: Engine) -> Version | None:
    """Return the version that the engine compares calls with; `None` = it holds none. Raises EngineUnavailable.

    A call by rules of before the first version is stale by any other, so that the engine names its own and changes
    nothing. On several shards it is that of one of them.
    """
    exact: Engine = engine.engine if isinstance(engine, LocalFirstEngine) else engine
    try:
        exact.check((), version=NO_VERSION)
    except StaleRules as stale:
        return None if stale.number is None else Version(stale.number, stale.epoch)
    return NO_VERSION


def outage_began(health: Health) -> datetime | None:
    """Return since when this process does not ask a server; the latest of several. `None` = it asks all of them."""
    if not health.open_breakers or pulse.outage_at is None:
        return None
    return datetime.fromtimestamp(pulse.outage_at, UTC)


def had_outage_lately(process: Heartbeat) -> bool:
    """Return whether a circuit breaker of this process has opened or closed in the last OUTAGE_SECONDS."""
    return process.outage_at is not None and process.at - process.outage_at < OUTAGE_SECONDS


def engine_in_words() -> str:
    """Return what the engine asks, without passwords; "" = nothing, each process counts in its own memory."""
    return server_in_words() if settings.ENGINE is not None or settings.CACHE_ALIAS is not None else ""
