"""Decisions while the engine is out of reach: with the same limits, in this process's memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from ..logs import logger
from .base import Charge, Verdict
from .limits import Limit
from .memory import MemoryEngine

LOG_INTERVAL_SECONDS: Final = 10.0

#: Maximum number of counters during an outage; many new callers push out the oldest.
MAX_COUNTERS: Final = 100_000


class FallbackEngine(MemoryEngine):
    """Decides in this process alone; its counts are never sent to Redis.

    clock: as for MemoryEngine.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock, max_counters=MAX_COUNTERS, counts_usage=False)
        self._logged_at = float("-inf")

    def check_share(self, charges: Sequence[Charge], share: float) -> Sequence[Verdict]:
        """Decide and charge. Each limit has `share` of its quota, but at least the cost."""
        scaled = [charge._replace(limit=_scaled(charge.limit, share, charge.cost), usage=None) for charge in charges]
        return self.check(scaled)

    def log_outage(self, error: Exception, server: Callable[[], str] | None) -> bool:
        """Log why requests are decided without the engine, once in LOG_INTERVAL_SECONDS. Returns whether it was logged.

        server: returns the server's name for the log; `None` = the cause is not a server.
        """
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL_SECONDS:
            return False
        self._logged_at = now
        logger.error(
            "Each rule's failure policy decides now: %s%s",
            _ended(str(error)),
            f" Server: {server()}. `manage.py check --deploy` checks it." if server else "",
        )
        return True


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith(".") else f"{sentence}."


@lru_cache(maxsize=10_000)
def _scaled(limit: Limit, share: float, cost: int) -> Limit:
    return limit.scaled(share, min(cost, limit.capacity))
