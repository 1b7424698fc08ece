"""Denial memory: denials are repeated while they hold, for a maximum number of seconds.

Times are monotonic seconds of this process. Nothing here is locked: see `counters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..base import Charge, Verdict, Version

#: Seconds left in a repeated denial of a shadow charge whose wait is over.
_SOON: Final = 0.001

#: Seconds between two searches for expired denials.
SWEEP_SECONDS: Final = 1.0


class CachedVerdict(Verdict):
    """A verdict from memory, without a call of the engine."""

    __slots__ = ()


class CachedDenial:
    """A verdict of a denied call, to be repeated until it may have changed.

    refuses: this verdict denied the call; else another verdict of the call did.
    """

    __slots__ = ("at", "refuses", "until", "verdict", "version")

    def __init__(self, verdict: Verdict, version: int | Version | None, now: float, most: float) -> None:
        self.verdict, self.version, self.at = verdict, version, now
        self.refuses = refuses(verdict)
        self.until = now + (min(most, verdict.retry_after or 0.0) if self.refuses else most)

    def covers(self, charge: Charge, version: int | Version | None, now: float) -> bool:
        """Return whether it applies to this charge: the same limit, and at least the cost that was denied."""
        known = self.verdict.charge
        if now >= self.until or self.version != version or known.gating is not charge.gating:
            return False
        if known.limit is not charge.limit and known.limit != charge.limit:
            return False
        if self.refuses:
            return known.cost <= charge.cost <= charge.limit.capacity and known.max_delay == charge.max_delay
        return known.cost == charge.cost and known.max_delay == charge.max_delay

    def covers_more_than(self, charge: Charge, version: int | Version | None, now: float) -> bool:
        """Return whether it applies to this charge and also to smaller costs."""
        return self.refuses and self.covers(charge, version, now) and self.verdict.charge.cost < charge.cost

    def replay(self, charge: Charge, now: float) -> CachedVerdict:
        """Return the verdict with its times as of now."""
        known, elapsed = self.verdict, now - self.at
        at_us = known.at_us + int(elapsed * 1_000_000)
        wait = known.retry_after
        return CachedVerdict(
            known.allowed,
            known.remaining,
            max(wait - elapsed, _SOON) if wait else wait,
            max(known.reset_after - elapsed, 0.0),
            known.delay,
            False,
            at_us,
            charge,
            0,
            at_us,
        )


def refuses(verdict: Verdict) -> bool:
    """Return whether the verdict denies its call until a known time."""
    charge = verdict.charge
    return not verdict.allowed and charge.gating and bool(verdict.retry_after) and not charge.limit.holds_leases


class DenialCache:
    """The verdicts of denied calls, by counter.

    seconds: maximum time for which a denial is repeated; 0 = never. most: maximum number of counters.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds = seconds
        self._most = most
        self._by_name: dict[str, CachedDenial] = {}
        self._sweep_at = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, charge: Charge, version: int | Version | None, now: float) -> CachedDenial | None:
        """Return the remembered verdict that applies to this charge; `None` = none."""
        refusal = self._by_name.get(charge.key + charge.limit.tag)
        return refusal if refusal is not None and refusal.covers(charge, version, now) else None

    def store(self, verdicts: Sequence[Verdict], version: int | Version | None, now: float) -> None:
        """Store the verdicts of a denied call. A denial that is charged must reach the engine each time: not stored."""
        if not self.seconds or any(verdict.charge.count_refusals for verdict in verdicts):
            return
        if len(self._by_name) + len(verdicts) > self._most and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._by_name = {name: kept for name, kept in self._by_name.items() if now < kept.until}
        for verdict in verdicts:
            name = verdict.charge.key + verdict.charge.limit.tag
            before = self._by_name.get(name)
            if before is None and len(self._by_name) >= self._most:
                continue
            if before is None or not before.covers_more_than(verdict.charge, version, now):
                self._by_name[name] = CachedDenial(verdict, version, now, self.seconds)

    def forget(self, charge: Charge) -> None:
        """Drop what is stored for this counter."""
        self._by_name.pop(charge.key + charge.limit.tag, None)
