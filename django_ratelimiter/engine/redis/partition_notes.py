"""Notes about partitions, which a process sends to Redis with its calls.

A call is either weighed or not: every call of a quiet process is, and one in sixteen of a busy one. A weighed call
sends a note about its own partitions, and about those that the process has seen for the first time in this hour. If
there are several shards, each call sends its own new ones: a partition that is counted in two shards would count as
two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from random import randrange
from typing import Final, NamedTuple

from ..call import Call
from ..partition_stats import HOUR_US, is_sampled, rule_of

#: Calls of a process that are weighed in each hour, each as one; after that, one in WEIGHT is, as WEIGHT calls.
WEIGHED_EXACTLY: Final = 1_000
WEIGHT: Final = 16

#: Maximum number of partitions that a process remembers as sent in this hour; above that it sends them again.
MAX_NOTIFIED: Final = 50_000

#: The first byte of a note contains its purposes, as bits; the second is the weight; the others are numbers of charges,
#: from 1 to the maximum of a byte.
IS_NEW, IS_SAMPLED, MAX_CHARGES = 1, 2, 255

#: Maximum number of new partitions in one note.
_MAX_NEW: Final = 1_000


class PartitionNote(NamedTuple):
    """The partition and label of some charges of a call; without a weight or charges, new partitions, one per line.

    what: the bytes described above. keys: how each is remembered.
    """

    what: bytearray
    label: str
    partition: str
    keys: Sequence[str]


def keys_of(flags: int, weighs: bool, label: str, minute: int) -> list[str]:
    """Return the Redis keys of a note, in the order of check.lua, without their common prefix."""
    hour, names = minute // 60, list[str]()
    if flags & IS_NEW:
        names += f"unique:{hour}:{label}", "hours"
    if weighs:
        rule = rule_of(label)
        names += f"allowed:{hour}:{rule}", f"rejected:{hour}:{rule}"
    if flags & IS_SAMPLED:
        names += f"sample:{minute}", "sampled"
    return names


def pool_notes(charges: Call, weight: int) -> list[PartitionNote]:
    """Return the notes that count the callers of a weighed call over all rules, each caller once."""
    return [
        PartitionNote(
            bytearray((0, weight, *[number for number in numbers if number <= MAX_CHARGES])),
            label,
            charges[place][7] or "",
            (),
        )
        for label, place, numbers in charges.template.pools
    ]


#: The notes of a call of filled charges: its weight, 0 = it is not weighed; which of its charges are sampled, as bits;
#: and which have new partitions.
NoteKind = tuple[int, int, int]


class PartitionTracker:
    """The notes of one process. For all threads, without a lock: a race at worst sends a note twice.

    at_once: a call that is not weighed sends its own new partitions, instead of leaving them to another call.
    """

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1_000, *, at_once: bool = False) -> None:
        self._clock, self._at_once = clock, at_once
        #: The label of each partition that was sent, by the key of its charge.
        self._notified: dict[str, str] = {}
        #: Filled charges without new partitions, and which of them are sampled, as bits.
        self._known: dict[tuple[object, tuple[str, ...]], int] = {}
        #: Label and partition that the next weighed call sends, by the key of the charge.
        self._new: dict[str, tuple[str, str]] = {}
        self._is_unconfirmed = False
        self._begin(-1)

    def forget(self) -> None:
        """Send all partitions again: the engine has lost its data."""
        self._notified.clear()
        self._known.clear()
        self._new.clear()

    def _begin(self, hour: int) -> None:
        self._hour, self._one_by_one, self._left = hour, WEIGHED_EXACTLY, 1
        self.forget()

    def of(self, charges: Call, now_us: int | None = None) -> list[PartitionNote]:
        """Return the notes of a call. now_us: its time, in microseconds since the Unix epoch; `None` = the clock's.

        A call without charges, which only asks for the version, has none, and its reply confirms none.
        """
        if not charges.partitions:
            return []
        hour = (self._clock() if now_us is None else now_us) // HOUR_US
        if hour != self._hour:
            self._begin(hour)
        self._left -= 1
        if self._left > 0:
            notified = self._notified
            for charge in charges:
                if notified.get(charge[0]) != charge[4]:
                    return self._notes_for(charges, 0)
            return []  # nothing new; samples are sent each time
        notes = self._notes_for(charges, self._weight(charges))
        if self._new:
            notes += self._new_partitions()
        return notes

    def kind_of(self, charges: Call, now_us: int) -> NoteKind | None:
        """Return the notes of a call by their kind, without creating charges; `None` = it has other notes, see `of`.

        If it has new partitions, call `acknowledge_new` after the engine's reply.
        """
        is_weighed = self._left <= 1
        if now_us // HOUR_US != self._hour or (is_weighed and self._new):
            return None
        sampled, new = self._known.get((charges.template.counters, charges.partitions)), 0
        if sampled is None:
            sampled, unknown = self._examine(charges)
            for place, key, label, partition in unknown:
                if is_weighed or sampled >> place & 1:
                    new |= 1 << place
                else:
                    self._new[key] = label, partition
            if not new:
                self._remember(charges, sampled)
        if is_weighed:
            return self._weight(charges), sampled, new
        self._left -= 1
        return 0, sampled, new

    def acknowledge_new(self, charges: Call, at_us: int) -> None:
        """Record the reply to a call with new partitions. at_us: the engine's time."""
        if at_us // HOUR_US == self._hour:
            sampled, unknown = self._examine(charges)
            self._note({key: label for place, key, label, _ in unknown if not sampled >> place & 1})
            self._remember(charges, sampled)

    def _examine(self, charges: Call) -> tuple[int, list[tuple[int, str, str, str]]]:
        """Return which charges are sampled, as bits, and those whose partitions were never sent.

        These with place, key, label and partition; of charges in a row with one label, only the first.
        """
        notified, sampled, unknown, previous = self._notified, 0, [], None
        for place, ((start, end, charge, is_split, *_), partition) in enumerate(
            zip(charges.template.templates, charges.partitions, strict=True)
        ):
            label = charge[4]
            if label is not None:
                sampled |= (is_split and is_sampled(partition)) << place
                if label != previous and notified.get(key := f"{start}{partition}{end}") != label:
                    unknown.append((place, key, label, partition))
            previous = label
        return sampled, unknown

    def _remember(self, charges: Call, sampled: int) -> None:
        if len(self._known) >= MAX_NOTIFIED:
            self._known.clear()
        self._known[charges.template.counters, charges.partitions] = sampled

    def _note(self, labels: dict[str, str]) -> None:
        """Record that these partitions were sent. Sampled ones are not recorded: each call sends them."""
        if len(self._notified) >= MAX_NOTIFIED:
            self._notified.clear()
        self._notified |= labels

    def _weight(self, charges: Call) -> int:
        charges.is_reported = True
        if self._one_by_one > 0:
            self._one_by_one, self._left = self._one_by_one - 1, 1
            return 1
        self._left = randrange(1, 2 * WEIGHT)
        return WEIGHT

    def _notes_for(self, charges: Call, weight: int) -> list[PartitionNote]:
        notes: list[PartitionNote] = []
        notified = self._notified
        unsplit = charges.template.unsplit
        for number, charge in enumerate(islice(charges, MAX_CHARGES), 1):
            key, label, partition = charge[0], charge[4], charge[7]
            if label is None:
                continue
            if partition is None:
                notified[key] = label  # nothing to send, now and later
                continue
            for note in notes:
                if note.label == label and note.partition == partition:
                    note.what.append(number)
                    break
            else:
                flags = (notified.get(key) != label) + IS_SAMPLED * (label not in unsplit and is_sampled(partition))
                if weight or flags & IS_SAMPLED or (flags and self._at_once):
                    notes.append(PartitionNote(bytearray((flags, weight, number)), label, partition, (key,)))
                elif flags:
                    self._new[key] = label, partition
        return notes + pool_notes(charges, weight) if weight and charges.template.pools else notes

    def _new_partitions(self) -> Iterator[PartitionNote]:
        """Yield the partitions that calls without a weight have seen for the first time."""
        if self._is_unconfirmed:  # the last note may have been lost, so send all again
            self._known.clear()
        new, self._new, self._is_unconfirmed = self._new, {}, True
        by_label: dict[str, list[tuple[str, str]]] = {}
        for key, (label, partition) in new.items():
            by_label.setdefault(label, []).append((key, partition.replace("\n", "\0")))
        for label, pairs in by_label.items():
            for place in range(0, len(pairs), _MAX_NEW):
                keys, partitions = zip(*pairs[place : place + _MAX_NEW], strict=True)
                yield PartitionNote(bytearray((IS_NEW, 0)), label, "\n".join(partitions), keys)

    def acknowledge(self, notes: Iterable[PartitionNote], at_us: int) -> None:
        """Record the engine's reply. at_us: the engine's time; notes belong to its hour, not to ours."""
        self._is_unconfirmed = False
        if at_us // HOUR_US == self._hour:
            self._note({key: label for what, label, _, keys in notes if what[0] == IS_NEW for key in keys})
