"""How usage is written down: one count per minute for each set of labels and what became of its charges.

A field is the labels of a call's charges, one a line, then a line with a letter for each charge: `a` admitted by its
rule, `s` admitted beyond its soft quota, `d` denied by its rule; in capitals where a process decided without the
engine. A shadow charge's label starts with `~`; a charge that is not counted has an empty line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple
from uuid import uuid4

from ..base import Charge, UsageCount, Verdict

SHADOW = "~"

#: The field that only makes a Redis hash a table, see check.lua.
FILLER = ""


#: So many entries travel with one call, so that no call keeps the server for long.
MAX_CARRIED: Final = 100

#: Seconds after which whoever took counts, and said no more, is taken for dead: a task that was cancelled.
LEASE_SECONDS: Final = 60.0

#: Seconds after which counts are sent again whose own shard was out of reach, unlike that of the call they came with.
RESEND_SECONDS: Final = 1.0


@dataclass(slots=True)
class UsageCarry:
    """Counts that a process has held, on their way to the engine, which adds what comes under one id only once.

    entries: a minute, counted from the Unix epoch, a field, and the calls to add to it. shard: the one that they were
    sent to, of an engine that has several, as long as it is not known whether they have arrived: only there they can
    be sent again. `None` = they may go anywhere.
    """

    id: str
    entries: tuple[tuple[int, str, int], ...]
    shard: int | None = None


def lines_of(charges: Iterable[Charge]) -> list[str]:
    """A line for each charge: its label, or nothing if it is not counted."""
    return [
        "" if charge.usage is None else charge.usage if charge.gating else SHADOW + charge.usage for charge in charges
    ]


def labels_of(lines: Sequence[str]) -> str:
    """The lines of the labels; empty if none is counted. ValueError for a label of several lines."""
    text = "\n".join(lines)
    if text.count("\n") != max(len(lines) - 1, 0):
        raise ValueError("usage: a label is one line of text.")
    return text if any(lines) else ""


def field_of(verdicts: Sequence[Verdict], *, degraded: bool = False) -> str:
    """The field that the call of these verdicts is counted under; empty if it is not counted.

    degraded: they were decided without the engine.
    """
    labels = labels_of(lines_of(verdict.charge for verdict in verdicts))
    outcomes = "".join("d" if not verdict.allowed else "s" if verdict.soft_exceeded else "a" for verdict in verdicts)
    return f"{labels}\n{outcomes.upper() if degraded else outcomes}" if labels else ""


def counts_of(minute: int, fields: Mapping[str, int]) -> list[UsageCount]:
    """Expand the fields of one minute into counts per label. A label with several charges counts once a call.

    Counts may be below 0, where a batch takes back what one before it has counted.
    """
    totals: dict[str, list[int]] = {}
    for field, calls in fields.items():
        *labels, outcomes = field.split("\n")
        worst: dict[str, tuple[str, bool]] = {}
        for label, outcome in zip(labels, outcomes.lower(), strict=True):
            shadow = label.startswith(SHADOW)
            name = label.removeprefix(SHADOW)
            if name:
                # "a" < "d" < "s"; a denial outweighs a soft excess
                before = worst.get(name, ("a", shadow))[0]
                worst[name] = ("d" if "d" in (before, outcome) else max(before, outcome), shadow)
        for name, (outcome, shadow) in worst.items():
            counts = totals.setdefault(name, [0, 0, 0, 0, 0])
            _add(counts, outcome, shadow, calls)
            counts[4] += calls if outcomes.isupper() else 0
    return [UsageCount(minute, label, *counts) for label, counts in totals.items() if any(counts)]


def _add(counts: list[int], outcome: str, shadow: bool, calls: int) -> None:
    """counts: allowed, denied, shadow_denied, soft_exceeded."""
    if outcome == "d":
        counts[2 if shadow else 1] += calls
    else:
        counts[0] += calls
        counts[3] += calls if outcome == "s" else 0


#: Refusals that are counted under one field in one minute are recorded one by one up to here; beyond that, each
#: hundredth stands for a hundred. The same numbers stand in refused.lua, where a flood of refusals must stay cheap.
RECORDED_EXACTLY, RECORDED_ONE_IN = 100, 100

#: Microseconds: after so long without a refusal, the next one begins a new count; and after so long it is forgotten.
PAUSE_US, FORGOTTEN_US = 3_600_000_000, 86_400_000_000

#: So many callers and limits stand in a list at most. One more, and only the latest stay, of each of both kinds.
MAX_LISTED, KEPT, KEPT_OF_SHADOWS = 1_000, 500, 250


class Refusal(NamedTuple):
    """A caller whom a limit of a rule has refused lately.

    at_us, since_us: when it was refused last, and first, in microseconds of the engine's time since the Unix epoch.
    times: how often in between; an estimate where there were many in a minute. label: the one that it is counted
    under. counter: the key of its charge with what tells the limit. shadow: it would have been refused.
    """

    at_us: int
    since_us: int
    times: int
    label: str
    counter: str
    shadow: bool = False

    @property
    def rule(self) -> str:
        """The rule that has refused."""
        return self.label.partition("|")[0]

    @property
    def tier(self) -> str:
        """The tier of the caller; empty if it has none."""
        return self.label.partition("|")[2]

    @property
    def partition(self) -> str:
        """What the key says of the caller: the digest of its partition, where the limiter has made the key."""
        return self.counter.removeprefix(f"{self.rule}:").partition(":")[0]


def latest(refusals: Iterable[Refusal], now_us: int, limit: int, rule: str | None = None) -> list[Refusal]:
    """Return so many of these at most, the latest first, and none that is forgotten. rule: of this rule only."""
    since = now_us - FORGOTTEN_US
    found = [each for each in refusals if each.at_us > since and (rule is None or each.rule == rule)]
    return sorted(found, key=lambda each: (-each.at_us, each.counter))[:limit]


class RecentRefusals:
    """The refusals that MemoryEngine remembers, as refused.lua does. Not locked: its engine is."""

    def __init__(self) -> None:
        self._by_counter: dict[str, Refusal] = {}

    def __iter__(self) -> Iterator[Refusal]:
        return iter(self._by_counter.values())

    def record(self, verdicts: Iterable[Verdict], counted: int) -> None:
        """Record whom these verdicts refuse. counted: so many calls were decided like this one in its minute."""
        if counted <= RECORDED_EXACTLY or counted % RECORDED_ONE_IN == 0:
            for verdict in verdicts:
                if not verdict.allowed and lines_of([verdict.charge])[0]:
                    self._record(verdict, 1 if counted <= RECORDED_EXACTLY else RECORDED_ONE_IN)

    def _record(self, verdict: Verdict, times: int) -> None:
        charge, now = verdict.charge, verdict.at_us
        counter, before, since = charge.key + charge.limit.tag, 0, now
        known = self._by_counter.get(counter)
        if known and now - known.at_us < PAUSE_US:
            before, since = known.times, known.since_us
        self._by_counter[counter] = Refusal(now, since, before + times, charge.usage or "", counter, not charge.gating)
        if known is None and len(self._by_counter) > MAX_LISTED:
            self._trim()

    def _trim(self) -> None:
        for shadow, most in ((False, KEPT), (True, KEPT_OF_SHADOWS)):
            alike = [each for each in self if each.shadow is shadow]
            oldest = sorted(each.at_us for each in alike)[-most] if len(alike) > most else 0
            for each in alike:
                if each.at_us < oldest:
                    del self._by_counter[each.counter]


def minute_of(batch: str) -> int:
    """The minute, counted from the Unix epoch, that a batch's name begins with."""
    return int(batch.partition(":")[0])


def shard_of(batch: str) -> int:
    """The shard that a batch lies in: the third part of its name, which only shard 0 leaves out."""
    shard = batch.split(":")[2:]
    return int(shard[0]) if shard else 0


def in_order(batches: Iterable[str]) -> list[str]:
    """Batches from the oldest minute to the latest."""
    return sorted(batches, key=lambda batch: (minute_of(batch), batch))


class UsageBuffer:
    """What a process has counted by itself and the engine has not: it travels with later calls, see `counts` there.

    For all threads of a process; a fork leaves it to the parent.
    max_fields: fields of a minute to keep. Beyond that, calls are counted in the latest minute that is kept for their
    field, and not at all if there is none. clock: seconds. is_empty: nothing is to be sent.
    """

    def __init__(self, max_fields: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_fields = max_fields
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self.is_empty = True
        self._counts: dict[tuple[int, str], int] = {}
        self._leased: dict[str, tuple[UsageCarry, float]] = {}  # with the time from which on somebody else may take it

    def _locked(self) -> Lock:
        """The lock, after a fork a new one: in the parent another thread may have held the old one."""
        if self._pid != os.getpid():
            self._forget()
        return self._lock

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return not self.is_empty

    def add(self, minute: int, field: str, calls: int = 1) -> None:
        """Count so many calls. field: see `field_of`."""
        with self._locked():
            key = (minute, field)
            if key not in self._counts and len(self._counts) >= self._max_fields:
                alike = [kept for kept in self._counts if kept[1] == field]
                if not alike:
                    return
                key = max(alike)
            self._counts[key] = self._counts.get(key, 0) + calls
            self.is_empty = False

    def lease(self) -> UsageCarry | None:
        """Some counts to travel with a call; `None` if none wait. Tell afterwards: `acknowledge` or `return_lease`."""
        if not self._counts and not self._leased:
            return None
        now = self._clock()
        with self._locked():
            carry = next((carry for carry, free_at in self._leased.values() if free_at <= now), None)
            if carry is None:
                keys = list(self._counts)[:MAX_CARRIED]
                if not keys:
                    return None
                carry = UsageCarry(uuid4().hex, tuple((*key, self._counts.pop(key)) for key in keys))
            self._leased[carry.id] = carry, now + LEASE_SECONDS
            return carry

    def acknowledge(self, carry: UsageCarry) -> None:
        """The call has returned: they are counted, or wait for their own shard."""
        with self._locked():
            if carry.shard is None:
                self._leased.pop(carry.id, None)
                self.is_empty = not (self._counts or self._leased)
            elif carry.id in self._leased:
                self._leased[carry.id] = carry, self._clock() + RESEND_SECONDS

    def return_lease(self, carry: UsageCarry) -> None:
        """The call has failed: nobody knows whether they are counted, so they are sent again under the same id."""
        with self._locked():
            if carry.id in self._leased:
                self._leased[carry.id] = carry, float("-inf")
