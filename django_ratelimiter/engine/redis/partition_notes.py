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

from ..base import tail_of
from ..call import Answer, Call
from ..partition_stats import MINUTE_US, is_sampled
from ..usage import extras_of

#: Minutes of an hour.
HOUR: Final = 60
#: Calls of a process that are weighed in each hour, each as one; after that, one in WEIGHT is, as WEIGHT calls.
WEIGHED_EXACTLY: Final = 1_000
WEIGHT: Final = 16

#: Maximum number of calls whose sampled partitions a process remembers; above that, all are found again.
MAX_REMEMBERED: Final = 50_000

#: The first byte of a note is 1 if its partition is sampled, 2 or 3 if it counts units, and above that if it takes back
#: what an earlier call has noted; the second is the weight; the others are numbers of charges, from 1 to the maximum.
MAX_CHARGES: Final = 255

#: Maximum number of rejected callers whose tails wait for the next call of a process.
MAX_WAITING: Final = 50


class PartitionNote(NamedTuple):
    """The partition and label of some charges of a call. what: the bytes described above. place: of the first charge.

    Without numbers of charges it is of a caller that an earlier call has rejected, for its tail.
    """

    what: bytearray
    label: str
    partition: str
    place: int = 0


#: The notes of a call: its weight, 0 = it is not weighed; and which of its charges are sampled, as bits.
NoteKind = tuple[int, int]


class PartitionTracker:
    """The notes of one process. For all threads, without a lock: a race may weigh one call more or lose a tail."""

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1_000) -> None:
        self._clock = clock
        #: Which charges of a template with these partitions are sampled, as bits.
        self._sampled: dict[tuple[object, tuple[str, ...]], int] = {}
        #: The partitions of this hour's rejected calls whose tails were sent or wait, and by shard the waiting notes.
        self._told: set[tuple[str, ...]] = set()
        self.waiting: dict[int, list[PartitionNote]] = {}
        self._begin(-1)

    def _begin(self, hour: int) -> None:
        self._hour, self._one_by_one, self._left = hour, WEIGHED_EXACTLY, 1
        self._told.clear()

    def of(self, charges: Call, now_us: int | None = None, shard: int = 0) -> list[PartitionNote]:
        """Return the notes of a call. now_us: its time, in microseconds since the Unix epoch; `None` = the clock's.

        A call without charges, which only asks for the version, has none.
        """
        if not charges.partitions:
            return []
        kind = self.kind_of(charges, (self._clock() if now_us is None else now_us) // MINUTE_US)
        return notes_of(charges, *kind) + self.waiting.pop(shard, [])

    def note_rejected(self, answer: Answer, shard: int = 0) -> None:
        """Let the tails of callers that a call has rejected without a note wait for the next call to their shard."""
        call, waiting = answer.charges, self.waiting
        if call.is_reported or call.partitions in self._told or len(waiting.get(shard, ())) >= MAX_WAITING:
            return
        if len(self._told) >= MAX_REMEMBERED:
            self._told.clear()
        self._told.add(call.partitions)
        for partition, wait in zip(call.partitions, answer.states.waits, strict=True):
            if (wait > 0 or wait == -1) and tail_of(partition):
                waiting.setdefault(shard, []).append(PartitionNote(bytearray(2), "", partition))

    def waiting_tails(self) -> dict[str, str]:
        """Return the tails that wait, by caller."""
        waiting = [note.partition for notes in self.waiting.copy().values() for note in notes]
        return {str(caller): tail_of(caller) for caller in waiting}

    def kind_of(self, charges: Call, minute: int) -> NoteKind:
        """Return the notes of a call by their kind, without creating its charges."""
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


def notes_of(charges: Call, weight: int, sampled: int) -> list[PartitionNote]:
    """Return the notes of a call of this kind: one for each label and partition, then the callers over all rules."""
    notes = dict[tuple[str, str], PartitionNote]()
    for place, charge in enumerate(islice(charges, MAX_CHARGES)):
        label, partition, is_sampled = charge.usage, charge.partition, sampled >> place & 1
        if label is None or partition is None:
            continue
        if (note := notes.get((label, partition))) is not None:
            note.what.append(place + 1)
        elif weight or is_sampled:
            what = bytearray((is_sampled, weight, place + 1))
            notes[label, partition] = PartitionNote(what, label, partition, place)
    pools = []
    for label, place, numbers in charges.template.pools if weight else ():
        what = bytearray((0, weight, *[number for number in numbers if number <= MAX_CHARGES]))
        pools.append(PartitionNote(what, label, charges[place].partition or "", place))
    earlier = [PartitionNote(bytearray((3 + weight, 0)), *what) for what in charges.noted if weight]
    return [*notes.values(), *pools, *earlier]


def notes_of_units(charges: Call) -> list[PartitionNote]:
    """Return the notes that count units apart: for their field and number."""
    return [
        PartitionNote(
            bytearray((3 if each.if_rejected else 2, 0, *[place + 1 for place in each.places if place < MAX_CHARGES])),
            each.field,
            str(each.units),
        )
        for each in extras_of(charges)
    ]


def _sampled_of(charges: Call) -> int:
    """Return which charges of a call are sampled, as bits."""
    sampled = 0
    for place, (each, filled) in enumerate(zip(charges.template.templates, charges.partitions, strict=True)):
        partition = filled if each.is_named else each.charge.partition
        if each.charge.usage is not None and each.is_split and partition is not None:
            sampled |= is_sampled(partition) << place
    return sampled
