"""The state of the limiter: of the engine, as this process sees it, of enforcement, and of the version of the rules."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db.models import QuerySet

from ...backend import get_engine, server_in_words
from ...conf import settings
from ...engine import breaker
from ...engine.base import Version
from ...engine.breaker import open_breakers
from ...exceptions import EngineUnavailable
from ...identity import untrusted
from ...models import RuleSetVersion
from ...rules import cache
from ...rules.stored import published, storage
from ...rules.stored.published import version_in_force

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


#: The summary that `switch_enforcement` writes into its version.
STOPPED, RESUMED = "enforcement stopped", "enforcement resumed"


class Status(NamedTuple):
    """The state of the limiter.

    state: "on", "stopped" by an operator, "disabled" by the settings, or "degraded": the failure policies decide.
    stopped: when and by whom; `None` = not stopped, or not known. resumed: the same for the end of the last stop;
    `None` = there was none, or enforcement is stopped. number: of the latest version in the database; 0 = there is
    none. version: its author; `None` = not stored. older: the older versions in shards of the engine, with the number
    of shards. held: what the engine holds; without a reply, nothing is wrong.
    """

    state: str
    stopped: RuleSetVersion | None
    resumed: RuleSetVersion | None
    number: int
    version: RuleSetVersion | None
    older: Mapping[int, int]
    held: published.Held


def read_status(health: Health) -> Status:
    """Return the status from the primary database, with up to seven short queries."""
    enforced = cache.enforcement_enabled()
    committed = storage.committed_version()
    latest = _first(storage.snapshots(committed))
    switched = _first(storage.snapshots().filter(summary=RESUMED if enforced else STOPPED))
    stopped, resumed = (None, switched) if enforced else (switched, None)
    older = _older(health.versions, committed)
    state = _state(enforced, health)
    held = published.compared(health.versions[0]) if health.versions else published.Held.OURS
    return Status(state, stopped, resumed, committed.number, latest, older, held)


def _older(versions: Iterable[Version | None], than: Version) -> Mapping[int, int]:
    """Count the older versions, the oldest first. A shard without a version gets it with the next call."""
    found = Counter(each for each in versions if each is not None and each.order < than.order)
    return {version.number: times for version, times in sorted(found.items(), key=lambda item: item[0].order)}


def _state(enforced: bool, health: Health) -> str:
    if not settings.ENABLED:
        return "disabled"
    if not enforced:
        return "stopped"
    return "degraded" if health.is_degraded else "on"


def _first(versions: QuerySet[RuleSetVersion]) -> RuleSetVersion | None:
    """Return the first of these versions, without its snapshot."""
    return versions.defer("snapshot").first()
