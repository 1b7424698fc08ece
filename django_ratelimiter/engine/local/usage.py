"""Usage that was counted locally, until it is sent to the engine."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from ..partition_stats import MINUTE_US
from ..usage import UsageBuffer, UsageCarry, without_name

#: Seconds after which local usage is sent with a call even if the call has nothing to sync.
COUNTS_INTERVAL: Final = 1.0

#: Above this number of counts, rejections of further callers are counted together.
MAX_APART: Final = 50


class LocalUsage:
    """Counts of the decisions of `LocalCounters`. Call it under the lock of `LocalCounters`.

    buffer: usage of this process that the engine has not counted. clock: monotonic seconds.
    counts: by minute and field. The request path looks at both before it calls `is_due`: usually both are empty.
    """

    def __init__(self, buffer: UsageBuffer, clock: Callable[[], float]) -> None:
        self.buffer, self._clock = buffer, clock
        self.counts: dict[tuple[int, str], int] = {}
        self._due_at = -inf

    def is_due(self) -> bool:
        """Return whether there are counts that have waited long enough to be sent."""
        return not self.buffer.is_empty or (bool(self.counts) and self._clock() >= self._due_at)

    def add(self, at_us: int, field: str) -> None:
        """Count a call under a field, which may name a caller; see `usage`."""
        key = at_us // MINUTE_US, field
        if len(self.counts) >= MAX_APART and key not in self.counts:
            key = key[0], without_name(field)
        self.counts[key] = self.counts.get(key, 0) + 1

    def lease(self) -> UsageCarry | None:
        """Return counts to send with a call. Afterwards call `acknowledge`."""
        for (minute, field), calls in self.counts.items():
            self.buffer.add(minute, field, calls)
        self.counts.clear()
        self._due_at = self._clock() + COUNTS_INTERVAL
        return self.buffer.lease()

    def acknowledge(self, counts: UsageCarry | None, *, done: bool) -> None:
        """Record whether leased counts have arrived; if that is not known, they are sent again."""
        if counts:
            (self.buffer.acknowledge if done else self.buffer.return_lease)(counts)
