"""The encoding of usage: one count per minute for each set of labels and the outcomes of their charges.

A field is the labels of a call's charges, one per line, then a line with a letter for each charge: `a` allowed by its
rule, `s` allowed beyond its soft quota, `d` rejected by its rule; in capitals if a process decided without the
engine. A shadow charge's label starts with `~`; a charge that is not counted has an empty line.

If an earlier call for the same request was counted, the first line is `~~` with the letter of its outcome, and the last
line begins with an `a` for it. So the requests can be counted, too, whatever rules match them: see `requests_of`.

A named field also has a line, after a tab, for each counter that rejected the call. It is used for the list of recent
rejections: see `rejections`. A process sends its own decisions in this form; they are counted under the field alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Final
from uuid import uuid4

from ..base import Charge, UsageCount, Verdict

SHADOW = "~"

#: The beginning of the first line of a field that continues a request.
CONTINUES: Final = "~~"

#: The outcomes of a request, each outweighing those before it: `w` = a shadow charge would have rejected it.
_OUTCOMES: Final = "aswd"

#: The prefix of each counter in a named field.
COUNTER: Final = "\n\t"

#: The field that only converts a Redis hash to a table, see check.lua.
FILLER = ""


#: Maximum number of entries that one call carries, so that no call takes the server long.
MAX_CARRIED: Final = 100

#: Maximum number of named fields that are counted before they are sent. Further ones do not reach the list.
MAX_NAMED: Final = 50

#: Seconds after which leased counts without an answer are leased again: their task was cancelled.
LEASE_SECONDS: Final = 60.0

#: Seconds for which counts may wait, if they are added so.
WAITING_SECONDS: Final = 1.0

#: Seconds after which counts are sent again if their own shard was out of reach, but the call itself succeeded.
RESEND_SECONDS: Final = 1.0


@dataclass(slots=True)
class UsageCarry:
    """Counts of a process that are sent to the engine, which adds counts with the same id only once.

    entries: a minute since the Unix epoch, a field, and the calls to add to it. shard: the one that they were
    sent to, if the engine has several, until it is known whether they have arrived: they can only be sent
    there again. `None` = any shard.
    """

    id: str
    entries: tuple[tuple[int, str, int], ...]
    shard: int | None = None


def lines_of(charges: Iterable[Charge]) -> list[str]:
    """Return a line for each charge: its label, or an empty one if it is not counted."""
    return [
        "" if charge.usage is None else charge.usage if charge.gating else SHADOW + charge.usage for charge in charges
    ]


def joined(lines: Sequence[str], outcomes: str, so_far: str) -> str:
    """Return the field of these lines and letters; empty if none is counted. so_far: see `CallTemplate`."""
    if not any(lines):
        return ""
    return "\n".join((f"{CONTINUES}{so_far}", *lines, f"a{outcomes}") if so_far else (*lines, outcomes))


def field_of(verdicts: Sequence[Verdict], *, so_far: str = "", degraded: bool = False) -> str:
    """Return the field that counts the call of these verdicts; empty if it is not counted.

    so_far: see `CallTemplate`. degraded: they were decided without the engine.
    """
    lines = lines_of(verdict.charge for verdict in verdicts)
    outcomes = "".join("d" if not verdict.allowed else "s" if verdict.soft_exceeded else "a" for verdict in verdicts)
    field = joined(lines, outcomes, so_far)
    return field[: -len(outcomes)] + outcomes.upper() if degraded and field else field


def outcome_of(field: str) -> str:
    """Return the letter of a request after a call with this field: see `_OUTCOMES`; a capital if it is degraded.

    "" for an empty field: the call was not counted.
    """
    if not field:
        return ""
    *labels, outcomes = without_name(field).split("\n")
    letters = [
        "w" if outcome == "d" and label.startswith(SHADOW) else outcome
        for label, outcome in zip(labels, outcomes.lower(), strict=True)
    ]
    before = labels[0].removeprefix(CONTINUES) if labels[0].startswith(CONTINUES) else ""
    worst: str = max((*before.lower(), *letters), key=_OUTCOMES.find)
    return worst.upper() if before.isupper() or outcomes[-1].isupper() else worst


def name_of(field: str, verdicts: Iterable[Verdict]) -> str:
    """Return this field with the names of the counters that reject; the field itself if none does."""
    rejecting = [verdict.charge for verdict in verdicts if not verdict.allowed] if field else ()
    return COUNTER.join((field, *[charge.key + charge.limit.tag for charge in rejecting]))


def without_name(field: str) -> str:
    """Return a field without its names, as it is counted."""
    return field.partition(COUNTER)[0]


def counts_of(minute: int, fields: Mapping[str, int]) -> list[UsageCount]:
    """Return the counts per label of one minute. A label with several charges counts once per call.

    Counts may be below 0 if a batch corrects an earlier one.
    """
    totals: dict[str, list[int]] = {}
    for field, calls in fields.items():
        *labels, outcomes = without_name(field).split("\n")
        worst: dict[str, tuple[str, bool]] = {}
        for label, outcome in zip(labels, outcomes.lower(), strict=True):
            shadow = label.startswith(SHADOW)
            name = label.removeprefix(SHADOW)
            if name and not label.startswith(CONTINUES):
                # "a" < "d" < "s"; a denial outweighs a soft excess
                before = worst.get(name, ("a", shadow))[0]
                worst[name] = ("d" if "d" in (before, outcome) else max(before, outcome), shadow)
        for name, (outcome, shadow) in worst.items():
            counts = totals.setdefault(name, [0, 0, 0, 0, 0])
            _add(counts, outcome, shadow, calls)
            counts[4] += calls if outcomes[-1].isupper() else 0
    return [UsageCount(minute, label, *counts) for label, counts in totals.items() if any(counts)]


def requests_of(minute: int, fields: Mapping[str, int]) -> UsageCount:
    """Return the counts of the requests of one minute, each once, whatever rules matched it. See `counts_of`."""
    counts = [0, 0, 0, 0, 0]
    for field, calls in fields.items():
        first = field.partition("\n")[0]
        for letter, times in ((outcome_of(field), calls), (first.removeprefix(CONTINUES), -calls)):
            if letter != first:  # else no earlier call was counted
                is_shadow = letter in "wW"
                _add(counts, "d" if is_shadow else letter.lower(), is_shadow, times)
                counts[4] += times if letter.isupper() else 0
    return UsageCount(minute, "", *counts)


def _add(counts: list[int], outcome: str, shadow: bool, calls: int) -> None:
    """counts: allowed, rejected, shadow_rejected, soft_exceeded."""
    if outcome == "d":
        counts[2 if shadow else 1] += calls
    else:
        counts[0] += calls
        counts[3] += calls if outcome == "s" else 0


def minute_of(batch: str) -> int:
    """Return the minute, since the Unix epoch, at the beginning of a batch's name."""
    return int(batch.partition(":")[0])


def shard_of(batch: str) -> int:
    """Return the shard of a batch: the third part of its name, which shard 0 omits."""
    shard = batch.split(":")[2:]
    return int(shard[0]) if shard else 0


def in_order(batches: Iterable[str]) -> list[str]:
    """Return batches from the oldest minute to the latest."""
    return sorted(batches, key=lambda batch: (minute_of(batch), batch))


class UsageBuffer:
    """Counts of this process that the engine does not have yet. Later calls carry them; see their argument `counts`.

    For all threads of a process; after a fork they stay with the parent.
    max_fields: fields of a minute to keep. Above that, calls are counted in the latest minute that has their
    field, or not at all if there is none. clock: seconds. is_empty: nothing to send. due_at: when to send it.
    """

    def __init__(self, max_fields: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_fields = max_fields
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self.is_empty: bool = True
        self.due_at: float = inf
        self._counts: dict[tuple[int, str], int] = {}
        self._leased: dict[str, tuple[UsageCarry, float]] = {}  # with the time after which it can be leased again

    def _locked(self) -> Lock:
        """The lock; after a fork a new one: in the parent another thread may have held the old one."""
        if self._pid != os.getpid():
            self._forget()
        return self._lock

    def __bool__(self) -> bool:
        """Return whether there is anything to send."""
        return not self.is_empty

    def add(self, minute: int, field: str, calls: int = 1, *, waits: bool = False) -> None:
        """Add a number of calls. field: see `field_of`; it may be a named one. waits: they may be sent later."""
        with self._locked():
            if not waits:
                self.due_at = -inf
            elif self.is_empty:
                self.due_at = self._clock() + WAITING_SECONDS
            key = (minute, field)
            if COUNTER in field and key not in self._counts and self._named() >= MAX_NAMED:
                key = minute, without_name(field)
            if key not in self._counts and len(self._counts) >= self._max_fields:
                alike = [kept for kept in self._counts if kept[1] == key[1]]
                if not alike:
                    return
                key = max(alike)
            self._counts[key] = self._counts.get(key, 0) + calls
            self.is_empty = False

    def _named(self) -> int:
        return sum(COUNTER in field for _, field in self._counts)

    def lease(self) -> UsageCarry | None:
        """Return counts for a call to carry; `None` if none wait. Then call `acknowledge` or `return_lease`."""
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
                self.due_at = -inf if self._counts else now + WAITING_SECONDS
            self._leased[carry.id] = carry, now + LEASE_SECONDS
            return carry

    @contextmanager
    def sending(self, carry: UsageCarry | None) -> Iterator[None]:
        """Record how a call ends that carries these counts."""
        try:
            yield
        except BaseException:
            if carry:
                self.return_lease(carry)
            raise
        if carry:
            self.acknowledge(carry)

    def acknowledge(self, carry: UsageCarry) -> None:
        """Record that the call has returned: the counts have arrived, or wait for their own shard."""
        with self._locked():
            if carry.shard is None:
                self._leased.pop(carry.id, None)
                self.is_empty = not (self._counts or self._leased)
            elif carry.id in self._leased:
                self._leased[carry.id] = carry, self._clock() + RESEND_SECONDS

    def return_lease(self, carry: UsageCarry) -> None:
        """Record that the call has failed: the counts may have arrived, so they are sent again with the same id."""
        with self._locked():
            if carry.id in self._leased:
                self._leased[carry.id], self.due_at = (carry, -inf), -inf
