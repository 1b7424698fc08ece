"""Notes about partitions, which a process sends to Redis with its calls.

A call is either weighed or not: every call of a quiet process is, and one in sixteen of a busy one. A weighed call
sends a note about its partitions, and each call sends one about those that are sampled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from random import randrange
from typing import Final, NamedTuple

from ..call import Call
from ..partition_stats import MINUTE_US, is_sampled, rule_of

#: Minutes of an hour.
HOUR: Final = 60
#: Calls of a process that are weighed in each hour, each as one; after that, one in WEIGHT is, as WEIGHT calls.
WEIGHED_EXACTLY: Final = 1_000
WEIGHT: Final = 16

#: Maximum number of calls whose sampled partitions a process remembers; above that, all are found again.
MAX_REMEMBERED: Final = 50_000

#: The first byte of a note is 1 if its partition is sampled; the second is the weight; the others are numbers of
#: charges, from 1 to the maximum of a byte.
MAX_CHARGES: Final = 255


class PartitionNote(NamedTuple):
    """The partition and label of some charges of a call. what: the bytes described above."""

    what: bytearray
    label: str
    partition: str


def keys_of(is_sampled: int, weighs: bool, label: str, minute: int) -> list[str]:
    """Return the Redis keys of a note, in the order of check.lua, without their common prefix."""
    hour, names = minute // 60, list[str]()
    if weighs:
        rule = rule_of(label)
        names += f"allowed:{hour}:{rule}", f"rejected:{hour}:{rule}", "hours"
    if is_sampled:
        names += f"sample:{minute}", "sampled"
    return names


def pool_notes(charges: Call, weight: int) -> list[PartitionNote]:
    """Return the notes that count the callers of a weighed call over all rules, each caller once."""
    return [
        PartitionNote(
            bytearray((0, weight, *[number for number in numbers if number <= MAX_CHARGES])),
            label,
            charges[place][7] or "",
        )
        for label, place, numbers in charges.template.pools
    ]


#: The notes of a call: its weight, 0 = it is not weighed; and which of its charges are sampled, as bits.
NoteKind = tuple[int, int]


class PartitionTracker:
    """The notes of one process. For all threads, without a lock: a race at worst weighs one call more or less."""

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1_000) -> None:
        self._clock = clock
        #: Which charges of a template with these partitions are sampled, as bits.
        self._sampled: dict[tuple[object, tuple[str, ...]], int] = {}
        self._begin(-1)

    def _begin(self, hour: int) -> None:
        self._hour, self._one_by_one, self._left = hour, WEIGHED_EXACTLY, 1

    def of(self, charges: Call, now_us: int | None = None) -> list[PartitionNote]:
        """Return the notes of a call. now_us: its time, in microseconds since the Unix epoch; `None` = the clock's.

        A call without charges, which only asks for the version, has none.
        """
        if not charges.partitions:
            return []
        return _notes_for(charges, self._weight(charges, (self._clock() if now_us is None else now_us) // MINUTE_US))

    def kind_of(self, charges: Call, minute: int) -> NoteKind:
        """Return the notes of a call of filled charges by their kind, without creating the charges."""
        sampled = self._sampled.get(key := (charges.template.counters, charges.partitions))
        if sampled is None:
            if len(self._sampled) >= MAX_REMEMBERED:
                self._sampled.clear()
            sampled = self._sampled[key] = _sampled_of(charges)
        return self._weight(charges, minute), sampled

    def _weight(self, charges: Call, minute: int) -> int:
        if (hour := minute // HOUR) != self._hour:
            self._begin(hour)
        self._left -= 1
        if self._left > 0:
            return 0
        charges.is_reported = True
        if self._one_by_one > 0:
            self._one_by_one, self._left = self._one_by_one - 1, 1
            return 1
        self._left = randrange(1, 2 * WEIGHT)
        return WEIGHT


def _notes_for(charges: Call, weight: int) -> list[PartitionNote]:
    notes: list[PartitionNote] = []
    unsplit = charges.template.unsplit
    for number, charge in enumerate(islice(charges, MAX_CHARGES), 1):
        label, partition = charge[4], charge[7]
        if label is None or partition is None:
            continue
        for note in notes:
            if note.label == label and note.partition == partition:
                note.what.append(number)
                break
        else:
            sampled = label not in unsplit and is_sampled(partition)
            if weight or sampled:
                notes.append(PartitionNote(bytearray((sampled, weight, number)), label, partition))
    return notes + pool_notes(charges, weight) if weight else notes


def _sampled_of(charges: Call) -> int:
    """Return which charges of a call of filled charges are sampled, as bits."""
    sampled = 0
    for place, (each, partition) in enumerate(zip(charges.template.templates, charges.partitions, strict=True)):
        if each[2][4] is not None and each[3]:
            sampled |= is_sampled(partition) << place
    return sampled
