"""What a process tells Redis of the partitions that it meets: notes that travel with calls which decide.

A process tells the engine of partitions in calls that decide, as notes beside the charges. It tells of those that the
call is about where it is weighed, as every call of a calm process is and one in sixteen of a busy one, and with it of
those that it has met for the first time in this hour. Where there are several shards, each call tells of its own new
ones: what two shards know of one partition would count as two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import randrange
from typing import Final, NamedTuple

from ..base import Charge
from ..partition_stats import HOUR_US, is_sampled, rule_of
from ..templates import CallTemplate, FilledCharges

#: So many calls of a process are weighed in each hour, each as one; beyond that, one in WEIGHT, as so many.
WEIGHED_EXACTLY: Final = 1_000
WEIGHT: Final = 16

#: Partitions of which a process remembers that it has told of them in this hour; beyond that it tells again.
MAX_NOTIFIED: Final = 50_000

#: The first byte of a note says what for, in bits; the second is the weight; the others number its charges from 1, to
#: the most that a byte holds.
IS_NEW, IS_SAMPLED, MAX_CHARGES = 1, 2, 255

#: So many new partitions stand in one note at most.
_MAX_NEW: Final = 1_000


class PartitionNote(NamedTuple):
    """A partition that a call meets under a label; or, without a weight or charges, new ones, one a line.

    what: the bytes described above. keys: what each is remembered by.
    """

    what: bytearray
    label: str
    partition: str
    keys: Sequence[str]


def keys_of(flags: int, weighs: bool, label: str, minute: int) -> list[str]:
    """The keys that Redis keeps what a note says in, in the order of check.lua, without what all keys begin with."""
    hour, names = minute // 60, list[str]()
    if flags & IS_NEW:
        names += f"unique:{hour}:{label}", "hours"
    if weighs:
        rule = rule_of(label)
        names += f"allowed:{hour}:{rule}", f"denied:{hour}:{rule}"
    if flags & IS_SAMPLED:
        names += f"sample:{minute}", "sampled"
    return names


class PartitionTracker:
    """What one process tells. For all threads, without a lock: a race at worst tells twice.

    at_once: whether a call that is not weighed tells of its own new partitions, rather than leaving them to another.
    """

    def __init__(self, clock: Callable[[], int] = lambda: time.time_ns() // 1_000, *, at_once: bool = False) -> None:
        self._clock, self._at_once = clock, at_once
        self._notified: dict[str, str] = {}  # the label by the key of the charge
        #: Who is told of already, or in `_new`, and which of their charges are sampled, as bits.
        self._known: dict[tuple[CallTemplate, tuple[str, ...]], int] = {}
        self._is_unconfirmed = False
        self._new: dict[str, tuple[str, str]] = {}  # what to tell with the next call that is weighed
        self._begin(-1)

    def forget(self) -> None:
        """Tell of all partitions again: the engine has lost its memory."""
        self._notified.clear()
        self._known.clear()
        self._new.clear()

    def _begin(self, hour: int) -> None:
        self._hour, self._one_by_one, self._left = hour, WEIGHED_EXACTLY, 1
        self.forget()

    def of(self, charges: Sequence[Charge], now_us: int | None = None) -> list[PartitionNote]:
        """The notes of a call. now_us: its time, in microseconds since the Unix epoch, if it brings one.

        None of a call without charges, which only asks for the version: it meets nobody, and its reply tells of nobody.
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
            else:  # nothing to tell: what is sampled is told each time
                if type(charges) is FilledCharges:
                    self._remember(charges, ())
                return []
        notes = self._notes_for(charges, self._weight() if is_weighed else 0)
        # What is new is remembered once the engine has answered.
        if type(charges) is FilledCharges and not [note for note in notes if note.what[0] & IS_NEW]:
            self._remember(charges, notes)
        return [*notes, *self._new_partitions()] if is_weighed else notes

    def weight_and_sampled(self, charges: FilledCharges, now_us: int) -> tuple[int, int] | None:
        """Return the weight of a call, 0 = it is not weighed, and which of its charges are sampled, as bits.

        `None` where there is more to tell, see `of`.
        """
        if now_us // HOUR_US != self._hour:
            return None
        sampled = self._known.get((charges.template, charges.partitions))
        if self._left > 1:
            if sampled is None and not self._meet(charges):
                return None
            self._left -= 1
            return 0, sampled or 0
        return None if self._new or sampled is None else (self._weight(), sampled)

    def weight_of_new(self, charges: FilledCharges, now_us: int) -> tuple[int, int, int] | None:
        """Return the weight of a call of a caller who is new in this hour, 0, and where partitions are new, as bits.

        Tell `acknowledge_new` that the engine has answered. `None` where there is more to tell, see `of`.
        """
        if now_us // HOUR_US != self._hour or self._left > 1 or self._new:
            return None
        templates, partitions, notified = charges.template.templates, charges.partitions, self._notified
        new, before = 0, None
        for place, ((start, end, charge, is_split), partition) in enumerate(zip(templates, partitions, strict=True)):
            if is_split and is_sampled(partition):
                return None
            label = charge[4]
            if label is not None and label != before and notified.get(f"{start}{partition}{end}") != label:
                new |= 1 << place
            before = label
        return self._weight(), 0, new

    def acknowledge_new(self, charges: FilledCharges, new: int, at_us: int) -> None:
        """The engine has answered such a call, at this time of its own. new: see `weight_of_new`."""
        if at_us // HOUR_US == self._hour:
            if len(self._notified) >= MAX_NOTIFIED:
                self._notified.clear()
            for place, ((start, end, charge, _), partition) in enumerate(
                zip(charges.template.templates, charges.partitions, strict=True)
            ):
                if new >> place & 1:
                    self._notified[f"{start}{partition}{end}"] = charge[4]  # type: ignore[assignment]
            self._remember(charges, ())

    def _meet(self, charges: FilledCharges) -> bool:
        """Leave a caller's new partitions to the next call that is weighed, without making charges.

        False = one of them is sampled: this call has to tell of it.
        """
        templates, partitions = charges.template.templates, charges.partitions
        for each, partition in zip(templates, partitions, strict=True):
            if each.is_split and is_sampled(partition):
                return False
        notified = self._notified
        for (before, after, charge, _), partition in zip(templates, partitions, strict=True):
            label = charge[4]
            if label is not None and notified.get(key := f"{before}{partition}{after}") != label:
                self._new[key] = label, partition
        self._remember(charges, ())
        return True

    def _remember(self, charges: FilledCharges, notes: Iterable[PartitionNote]) -> None:
        """Remember that nobody need be told of these charges. notes: what the call has told."""
        numbers = [number for what, *_ in notes if what[0] & IS_SAMPLED for number in what[2:]]
        if len(self._known) >= MAX_NOTIFIED:
            self._known.clear()
        self._known[charges.template, charges.partitions] = sum(1 << number - 1 for number in numbers) if numbers else 0

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
                notified[key] = label  # nothing to tell, now and later
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
        """What has been met for the first time by calls that were not weighed."""
        if self._new:
            if self._is_unconfirmed:  # what was told last may have been lost, so that all shall be told again
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
        """The engine has answered, at this time of its own. What is told belongs to its hour, not to ours.

        charges: of the call.
        """
        self._is_unconfirmed = False
        if at_us // HOUR_US == self._hour:
            notified = self._notified
            if len(notified) >= MAX_NOTIFIED:
                notified.clear()
            for what, label, _, keys in notes:
                if what[0] == IS_NEW:  # what is sampled is told each time
                    notified.update(dict.fromkeys(keys, label))
            if type(charges) is FilledCharges:
                self._remember(charges, notes)
