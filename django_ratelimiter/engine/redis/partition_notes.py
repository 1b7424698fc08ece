"""Notes about partitions, which a process sends to Redis with its calls.

A call is either weighed or not: every call of a quiet process is, and one in sixteen of a busy one. A weighed call
sends a note about its own partitions, and about those that the process has seen for the first time in this hour. If
there are several shards, each call sends its own new ones: a partition that is counted in two shards would count as
two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import randrange
from typing import Final, NamedTuple

from ..base import Charge
from ..partition_stats import HOUR_US, is_sampled, rule_of
from ..templates import FilledCharges

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


#: The kind of a call's notes: its weight, 0 = it is not weighed; which of its charges are sampled, as bits; and which
#: have new partitions.
NoteKind = tuple[int, int, int]


class PartitionTracker:
    """The notes of one process. For all threads, without a lock: a race at worst sends a note twice.

    at_once: a call that is not weighed sends its own new partitions, instead of leaving them to another call.
    """

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1_000, *, at_once: bool = False) -> None:
        self._clock, self._at_once = clock, at_once
        self._notified: dict[str, str] = {}  # the label by the key of the charge
        #: Partitions that were sent, or are in `_new`, and which of their charges are sampled, as bits.
        self._known: dict[tuple[object, tuple[str, ...]], int] = {}
        self._is_unconfirmed = False
        self._new: dict[str, tuple[str, str]] = {}  # to send with the next weighed call
        self._begin(-1)

    def forget(self) -> None:
        """Send all partitions again: the engine has lost its data."""
        self._notified.clear()
        self._known.clear()
        self._new.clear()

    def _begin(self, hour: int) -> None:
        self._hour, self._one_by_one, self._left = hour, WEIGHED_EXACTLY, 1
        self.forget()

    def of(self, charges: Sequence[Charge], now_us: int | None = None) -> list[PartitionNote]:
        """Return the notes of a call. now_us: its time, in microseconds since the Unix epoch; `None` = the clock's.

        A call without charges, which only asks for the version, has none, and its reply confirms none.
        """
        if not charges:
            return []
        hour = (self._clock() if now_us is None else now_us) // HOUR_US
        if hour != self._hour:
            self._begin(hour)
        self._left -= 1
        is_weighed = self._left <= 0
        if not is_weighed:
            notified = self._notified
            for charge in charges:
                if notified.get(charge[0]) != charge[4]:
                    break
            else:  # nothing new; samples are sent each time
                if type(charges) is FilledCharges:
                    self._remember(charges, ())
                return []
        notes = self._notes_for(charges, self._weight() if is_weighed else 0)
        # New partitions are remembered only after the engine has answered.
        if type(charges) is FilledCharges and not [note for note in notes if note.what[0] & IS_NEW]:
            self._remember(charges, notes)
        return [*notes, *self._new_partitions()] if is_weighed else notes

    def kind_of(self, charges: FilledCharges, now_us: int) -> NoteKind | None:
        """Return the kind of a call's notes, without creating charges; `None` = it has other notes, see `of`.

        If it has new partitions, call `acknowledge_new` after the engine's reply.
        """
        if now_us // HOUR_US != self._hour:
            return None
        sampled, left = self._known.get((charges.template.counters, charges.partitions)), self._left
        if left <= 1 and self._new:
            return None
        if sampled is not None:
            if left <= 1:
                return self._weight(), sampled, 0
            self._left = left - 1
            return 0, sampled, 0
        if (unknown := self._unknown(charges)) is None:
            return None
        if left <= 1:
            if not unknown:
                self._remember(charges, ())
            return self._weight(), 0, sum(1 << place for place, *_ in unknown)
        for _, key, label, partition in unknown:
            self._new[key] = label, partition
        self._remember(charges, ())
        self._left = left - 1
        return 0, 0, 0

    def acknowledge_new(self, charges: FilledCharges, at_us: int) -> None:
        """Record the reply to a call with new partitions. at_us: the engine's time."""
        if at_us // HOUR_US == self._hour:
            if len(self._notified) >= MAX_NOTIFIED:
                self._notified.clear()
            self._notified |= {key: label for _, key, label, _ in self._unknown(charges) or ()}
            self._remember(charges, ())

    def _unknown(self, charges: FilledCharges) -> list[tuple[int, str, str, str]] | None:
        """Return the charges of partitions that were never sent: place, key, label and partition.

        Of charges in a row with one label, the first. `None` = a partition is sampled, so each call must send it.
        """
        notified, unknown, previous = self._notified, [], None
        for place, ((start, end, charge, is_split), partition) in enumerate(
            zip(charges.template.templates, charges.partitions, strict=True)
        ):
            if is_split and is_sampled(partition):
                return None
            label = charge[4]
            if label is not None and label != previous and notified.get(key := f"{start}{partition}{end}") != label:
                unknown.append((place, key, label, partition))
            previous = label
        return unknown

    def _remember(self, charges: FilledCharges, notes: Iterable[PartitionNote]) -> None:
        """Remember that these charges need no more notes. notes: that the call has sent."""
        numbers = [number for what, *_ in notes if what[0] & IS_SAMPLED for number in what[2:]]
        if len(self._known) >= MAX_NOTIFIED:
            self._known.clear()
        self._known[charges.template.counters, charges.partitions] = (
            sum(1 << number - 1 for number in numbers) if numbers else 0
        )

    def _weight(self) -> int:
        if self._one_by_one > 0:
            self._one_by_one, self._left = self._one_by_one - 1, 1
            return 1
        self._left = randrange(1, 2 * WEIGHT)
        return WEIGHT

    def _notes_for(self, charges: Sequence[Charge], weight: int) -> list[PartitionNote]:
        notes: list[PartitionNote] = []
        notified = self._notified
        unsplit = charges.template.unsplit if type(charges) is FilledCharges else ()
        for number, charge in enumerate(charges[:MAX_CHARGES], 1):
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
        return notes

    def _new_partitions(self) -> Iterator[PartitionNote]:
        """Yield the partitions that calls without a weight have seen for the first time."""
        if self._new:
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

    def acknowledge(self, notes: Iterable[PartitionNote], at_us: int, charges: Sequence[Charge] = ()) -> None:
        """Record the engine's reply. at_us: the engine's time; notes belong to its hour, not to ours.

        charges: of the call.
        """
        self._is_unconfirmed = False
        if at_us // HOUR_US == self._hour:
            notified = self._notified
            if len(notified) >= MAX_NOTIFIED:
                notified.clear()
            for what, label, _, keys in notes:
                if what[0] == IS_NEW:  # samples are sent each time
                    notified.update(dict.fromkeys(keys, label))
            if type(charges) is FilledCharges:
                self._remember(charges, notes)
