"""Denial memory: rejections are repeated while they hold, for a maximum number of seconds.

Times are monotonic seconds of this process. Nothing here is locked: see `store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..base import Charge, Version
from .counter import SOON_US, CounterState

#: Seconds between two searches for expired rejections.
SWEEP_SECONDS: Final = 1.0


class CachedRejection:
    """The result for one charge of a rejected call, to be repeated until it may have changed.

    is_rejected: this charge rejected the call; else another one did.
    """

    __slots__ = ("_at", "_state", "_version", "charge", "is_rejected", "until")

    #: As a counter's.
    syncs = 0

    def __init__(
        self, charge: Charge, state: CounterState, version: int | Version | None, now: float, most: float
    ) -> None:
        self.charge, self._state, self._version, self._at = charge, state, version, now
        self.is_rejected = rejects(charge, state)
        self.until = now + (min(most, state.wait / 1_000_000) if self.is_rejected else most)

    def covers(self, charge: Charge, version: int | Version | None, now: float) -> bool:
        """Return whether it applies to this charge: the same limit, and at least the cost that was rejected."""
        known = self.charge
        if now >= self.until or (self._version is not version and self._version != version):
            return False
        if known is charge:  # of one template
            return True
        if known.gating is not charge.gating or (known.limit is not charge.limit and known.limit != charge.limit):
            return False
        if self.is_rejected:
            return known.cost <= charge.cost <= charge.limit.capacity and known.max_delay == charge.max_delay
        return known.cost == charge.cost and known.max_delay == charge.max_delay

    def rejects(self, _charge: Charge) -> bool:
        """Return whether it rejects a charge that it covers."""
        return self.is_rejected

    def take(self, _charge: Charge, now: float, *, rejected: bool) -> CounterState:
        """Return the result as of now."""
        at_us, remaining, wait, reset, lead = self._state
        elapsed = int((now - self._at) * 1_000_000)
        wait = max(wait - elapsed, SOON_US) if wait > 0 else wait  # that of a shadow charge may be over
        return CounterState(at_us + elapsed, remaining, wait, max(reset - elapsed, 0), lead)


def rejects(charge: Charge, state: CounterState) -> bool:
    """Return whether this result rejects its call until a known time."""
    return state.wait > 0 and charge.gating and not charge.limit.holds_leases


class RejectionCache:
    """The results of rejected calls, by the names of the counters.

    seconds: maximum time for which a rejection is repeated; 0 = never. most: maximum number of counters.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds = seconds
        self._most = most
        self._by_name: dict[str, CachedRejection] = {}
        self._sweep_at = float("-inf")

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str, charge: Charge, version: int | Version | None, now: float) -> CachedRejection | None:
        """Return the remembered result that applies to this charge; `None` = none."""
        known = self._by_name.get(name)
        return known if known is not None and known.covers(charge, version, now) else None

    def store(
        self, results: Sequence[tuple[str, Charge, CounterState]], version: int | Version | None, now: float
    ) -> None:
        """Store the results of a rejected call by the names of their counters.

        A rejection that is charged must reach the engine each time, so it is not stored.
        """
        if not self.seconds or any(charge.count_refusals for _, charge, _ in results):
            return
        if len(self._by_name) + len(results) > self._most and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._by_name = {name: known for name, known in self._by_name.items() if now < known.until}
        for name, charge, state in results:
            before = self._by_name.get(name)
            if before is None and len(self._by_name) >= self._most:
                continue
            covers_more = before and before.is_rejected and before.charge.cost < charge.cost
            if not (before and covers_more and before.covers(charge, version, now)):
                self._by_name[name] = CachedRejection(charge, state, version, now, self.seconds)

    def forget(self, name: str) -> None:
        """Drop what is stored for this counter."""
        self._by_name.pop(name, None)
