"""How the engine stands as this process sees it: one call that compares nothing and spends nothing."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from ...backend import get_engine, server_in_words
from ...conf import settings
from ...engine.base import Engine, Version
from ...engine.breaker import open_breakers
from ...engine.local.engine import LocalFirstEngine
from ...exceptions import EngineUnavailable, StaleRules
from ...rules.ruleset import NO_VERSION

#: How often the engine is asked: the first call of a process may find no connection yet, and that is no fault.
ATTEMPTS: Final = 2
#: Seconds between two attempts.
PAUSE: Final = 0.1


class Health(NamedTuple):
    """The answer of the engine, or why there was none.

    milliseconds: of the round trip; `None` = no answer. version: the one in force there; `None` = it has none, or gave
    no answer. problem: why there was no answer. open_breakers: servers that this process does not ask at present.
    """

    milliseconds: float | None
    version: Version | None
    problem: str
    open_breakers: int

    @property
    def is_degraded(self) -> bool:
        """Return whether this process decides by the failure policies: the engine does not answer it."""
        return self.milliseconds is None or self.open_breakers > 0


def read_health() -> Health:
    """Ask the engine once, and once more where it had no connection yet. Never raises for an engine that is away."""
    problem = ""
    for attempt in range(ATTEMPTS):
        try:
            began = time.perf_counter()
            version = version_in_force(get_engine())
            return Health(1_000 * (time.perf_counter() - began), version, "", open_breakers())
        except EngineUnavailable as error:
            problem = str(error)
        except ImproperlyConfigured as error:
            return Health(None, None, str(error), open_breakers())
        if open_breakers() or attempt == ATTEMPTS - 1:
            break
        time.sleep(PAUSE)
    return Health(None, None, problem, open_breakers())


def version_in_force(engine: Engine) -> Version | None:
    """Return the version that the engine compares calls with; `None` = it holds none. Raises EngineUnavailable.

    A call by rules of before the first version is stale by any other, so that the engine names its own and changes
    nothing. On several shards it is the first one's.
    """
    exact: Engine = engine.engine if isinstance(engine, LocalFirstEngine) else engine
    try:
        exact.check((), version=NO_VERSION)
    except StaleRules as stale:
        return None if stale.number is None else Version(stale.number, stale.epoch)
    return NO_VERSION


def engine_in_words() -> str:
    """Return what the engine asks, without passwords; "" = nothing, each process counts in its own memory."""
    return server_in_words() if settings.ENGINE is not None or settings.CACHE_ALIAS is not None else ""
