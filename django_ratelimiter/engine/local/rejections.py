"""Denial memory: rejections are repeated while they hold, for a maximum number of seconds.

Times are monotonic seconds of this process. Nothing here is locked: see `store`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..base import Charge, Version
from ..call import Answer, Call, CounterStates, LocalAnswer
from .prefetch import SOON_US

#: Seconds between two searches for expired rejections.
SWEEP_SECONDS: Final = 1.0


@dataclass(slots=True)
class CachedRejection:
    """The result for one charge of a rejected call, to be repeated until it may have changed.

    rejects: this charge rejected the call; else another one did. states, place: where its result is. at: when it came.
    """

    charge: Charge
    version: int | Version | None
    rejects: bool
    states: CounterStates
    place: int
    at: float
    until: float

    def covers(self, charge: Charge, version: int | Version | None, now: float) -> bool:
        """Return whether it applies to this charge: the same limit, and at least the cost that was rejected."""
        known = self.charge
        if now >= self.until or (self.version is not version and self.version != version):
            return False
        if known is charge:  # of one template
            return True
        alike = known.gating is charge.gating and known.limit == charge.limit and known.max_delay == charge.max_delay
        if self.rejects:
            return alike and known.cost <= charge.cost <= charge.limit.capacity
        return alike and known.cost == charge.cost

    def state(self, now: float) -> tuple[int, ...]:
        """Return the result as of now: time, remaining, wait, reset and lead."""
        at_us, (remaining, wait, reset, lead) = self.states.at_us, [each[self.place] for each in self.states[1:]]
        elapsed = int((now - self.at) * 1_000_000)
        wait = max(wait - elapsed, SOON_US) if wait > 0 else wait  # that of a shadow charge may be over
        return at_us + elapsed, remaining, wait, max(reset - elapsed, 0), lead


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

    def answer(self, call: Call, version: int | Version | None, now: float) -> Answer | None:
        """Return the repeated answer to a call that is remembered to be rejected; `None` = the engine must decide."""
        found = []
        for name, each in zip(call.names(), call.template.templates, strict=True):
            known = self._by_name.get(name)
            if known is None or not known.covers(each.charge, version, now):
                return None
            found.append(known)
        if not any(known.rejects for known in found):
            return None
        times, remaining, waits, resets, ahead = zip(*[known.state(now) for known in found], strict=True)
        leads = [at_us - times[0] + lead for at_us, lead in zip(times, ahead, strict=True)]
        return LocalAnswer.of(call, CounterStates(times[0], remaining, waits, resets, leads))

    def store(self, answer: Answer, version: int | Version | None, now: float) -> None:
        """Store the results of a rejected call by the names of their counters, if the rejection holds for a while.

        A rejection that is charged must reach the engine each time, so it is not stored.
        """
        charges, waits = [each.charge for each in answer.charges.template.templates], answer.states.waits
        holds = [
            wait > 0 and charge.gating and not charge.limit.holds_leases
            for charge, wait in zip(charges, waits, strict=True)
        ]
        if not self.seconds or not any(holds) or any(charge.count_refusals for charge in charges):
            return
        if len(self._by_name) + len(charges) > self._most and now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._by_name = {name: known for name, known in self._by_name.items() if now < known.until}
        for place, (name, charge, rejects) in enumerate(zip(answer.charges.names(), charges, holds, strict=True)):
            before = self._by_name.get(name)
            if before is None and len(self._by_name) >= self._most:
                continue
            if before and before.rejects and before.charge.cost < charge.cost and before.covers(charge, version, now):
                continue  # that one covers more
            until = now + (min(self.seconds, waits[place] / 1_000_000) if rejects else self.seconds)
            self._by_name[name] = CachedRejection(charge, version, rejects, answer.states, place, now, until)

    def forget(self, name: str) -> None:
        """Drop what is stored for this counter."""
        self._by_name.pop(name, None)
