"""The state of the engine, as this process sees it: one call that compares and charges nothing.

Also the versions in all its shards, and proxies that are not trusted.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from ...backend import get_engine, server_in_words
from ...conf import settings
from ...engine import breaker
from ...engine.base import Version
from ...engine.breaker import open_breakers
from ...exceptions import EngineUnavailable
from ...limiter import untrusted
from ...rules.stored.epochs import version_in_force

#: How often the engine is called: the first call of a process may have no connection yet, which is no error.
ATTEMPTS: Final = 2
#: Seconds between two attempts.
PAUSE: Final = 0.1

#: Seconds for which the overview tells that this process did not reach Redis.
OUTAGE_SECONDS: Final = 300.0


class Health(NamedTuple):
    """The reply of the engine, or why there was none.

    milliseconds: of the round trip; `None` = no reply. problem: why there was no reply. open_breakers: servers that
    this process does not call at present. versions: those in its shards, or its only one; `None` = a shard
    holds none; empty = no reply. unanswered: shards that did not answer. proxies: see `untrusted.found_lately`.
    """

    milliseconds: float | None
    problem: str
    open_breakers: int
    versions: Sequence[Version | None] = ()
    unanswered: int = 0
    proxies: Collection[str] = ()

    @property
    def is_degraded(self) -> bool:
        """Return whether this process decides by the failure policies, because it cannot reach the engine."""
        return self.milliseconds is None or self.open_breakers > 0


def read_health(*, in_detail: bool = False) -> Health:
    """Call the engine, and once more if there was no connection yet. Does not raise if the engine is out of reach.

    in_detail: also read the versions of all shards, and proxies.
    """
    problem = ""
    for attempt in range(ATTEMPTS):
        try:
            began = time.perf_counter()
            version = version_in_force(get_engine())
            health = Health(1_000 * (time.perf_counter() - began), "", open_breakers(), (version,))
            return _in_detail(health) if in_detail else health
        except EngineUnavailable as error:
            problem = str(error)
        except ImproperlyConfigured as error:
            problem = str(error)
            break
        if open_breakers() or attempt == ATTEMPTS - 1:
            break
        time.sleep(PAUSE)
    return Health(None, problem, open_breakers())


def _in_detail(health: Health) -> Health:
    engine: Any = get_engine()
    try:
        if (shards := getattr(engine, "shards", 1)) > 1:
            versions = engine.versions()
            health = health._replace(versions=versions, unanswered=shards - len(versions))
        return health._replace(proxies=untrusted.found_lately())
    except EngineUnavailable as error:
        return health._replace(problem=str(error))


def outage_began(health: Health) -> datetime | None:
    """Return since when this process does not call a server; the latest of several. `None` = it calls all of them."""
    if not health.open_breakers or breaker.changed_at is None:
        return None
    return datetime.fromtimestamp(breaker.changed_at, UTC)


def had_outage_lately() -> bool:
    """Return whether a circuit breaker of this process has opened or closed in the last OUTAGE_SECONDS."""
    return breaker.changed_at is not None and time.time() - breaker.changed_at < OUTAGE_SECONDS


def engine_in_words() -> str:
    """Return the server of the engine, without passwords; "" = none, each process counts in its own memory."""
    return server_in_words() if settings.ENGINE is not None or settings.CACHE_ALIAS is not None else ""
