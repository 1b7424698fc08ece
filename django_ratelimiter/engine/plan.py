"""The plan of a call: charges packed into one EVALSHA of check.lua, and its reply read. Speaks to no server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from itertools import compress
from operator import attrgetter
from struct import pack
from typing import Final
from zlib import crc32

from ..exceptions import StaleRules
from . import usage
from .base import Charge, Verdict, Version, as_version, check_units
from .limits import EXACT, MOST_UNITS, check_time
from .partitions import Note, Notes
from .scripts import CHECK_SHA

#: How often a call is sent, each time with the calendar windows of the time that Redis has named.
ATTEMPTS: Final = 4
OUT_OF_TIME: Final = f"The time of Redis left its calendar windows {ATTEMPTS} times during one call."

_FLAGS: Final = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}
_COST_ONE: Final = {key: pack("<dd", 1, flags) for key, flags in _FLAGS.items()}

_GATES: Final = attrgetter("gating")

#: The bytes of a call's first doubles, and of those that each charge or receipt has.
_OPENING, _RECORD = 4 * 8, 9 * 8


class Mode(IntEnum):
    """What check.lua is to do."""

    CHECK = 0
    PEEK = 1
    REFUND = 2
    PUBLISH = 3
    REFUSED = 4
    UNDO = 5


#: Of how many callers who come again the call is kept; beyond that all are packed anew.
MOST_KEPT: Final = 2_000

#: The modes in which a decision is counted.
COUNTING: Final = (Mode.CHECK, Mode.REFUSED)


class Planner:
    """Names keys and packs calls for one namespace; an engine is a planner that can ask.

    namespace: what all keys begin with. shards: among how many hash tags the keys are spread; one call speaks to one.
    """

    def __init__(self, namespace: str, shards: int = 1) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ValueError(f"namespace: must be some text without braces, not {namespace!r}.")
        self.namespace = namespace
        self.shards = shards
        self._prefixes = [f"{{{namespace}:{shard}}}:" for shard in range(shards)]
        self._heads: dict[tuple[int, int], bytes] = {}
        self._compared: tuple[int | Version | None, bytes] = None, _word(b"")
        self._kept: dict[int, tuple[Sequence[Charge], int | Version | None, bytes]] = {}  # by `id` of the charges
        self._notes = Notes(at_once=shards > 1)
        self._ahead = 0  # what the clock of Redis is ahead of ours, as far as calendars have shown

    def shard_of(self, charge: Charge) -> int:
        """The shard of a charge, by its partition."""
        if self.shards == 1:
            return 0
        return crc32((charge.key if charge.partition is None else charge.partition).encode()) % self.shards

    def _prefix(self, shard: int) -> str:
        """What the keys of a shard begin with."""
        return self._prefixes[shard]

    def _version_key(self, shard: int) -> str:
        return f"{self._prefix(shard)}version"

    def _name(self, charge: Charge) -> bytes:
        return f"{self._prefix(self.shard_of(charge))}{charge.key}{charge.limit.tag}".encode()

    def _packed(
        self,
        mode: Mode,
        charges: Sequence[Charge],
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        times: Sequence[int] | None = None,
        *,
        shard: int = 0,
        counts: usage.Held | None = None,
        notes: Sequence[Note] = (),
    ) -> bytes:
        """One call, to the one shard that all of these lie in.

        times: by the clock of each charge, where Redis has named them. counts: usage that was held in this process.
        notes: of the partitions that it meets. A tuple of charges is taken for one that comes again: the bytes of its
        call are kept, where nothing but the version is beside it.
        """
        if type(charges) is not tuple or receipts or counts or notes or mode is not Mode.CHECK or now_us is not None:
            return self._pack(mode, charges, receipts, version, now_us, times, shard, counts, notes)
        kept = self._kept.get(id(charges))
        if kept is not None and kept[1] is version:
            return kept[2]
        call = self._pack(mode, charges, receipts, version, now_us, times, shard, counts, notes)
        if all(charge.limit.is_fixed for charge in charges):
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[id(charges)] = charges, version, call  # held, no other charges have their `id`
        return call

    def _pack(
        self,
        mode: Mode,
        charges: Sequence[Charge],
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        times: Sequence[int] | None,
        shard: int,
        counts: usage.Held | None,
        notes: Sequence[Note],
    ) -> bytes:
        if now_us is not None:
            check_time(now_us)
        prefix = self._prefixes[shard]
        names: list[bytes] = []
        records: list[bytes] = []
        lines: list[str] = []
        for charge in charges:  # taken apart at once: looked up one by one, its parts would cost more than the rest
            key, limit, cost, gating, label, counts_refusals, _, _, _, carried = charge
            names.append(f"{prefix}{key}{limit.tag}".encode())
            records.append(limit.packed if limit.is_fixed else self._terms(charge, now_us, times, len(lines)))
            if type(cost) is int and cost == 1 and type(carried) is int and carried == 0:
                records.append(_COST_ONE[gating, counts_refusals])
            else:
                records.append(_cost(charge))
            lines.append("" if label is None else label if gating else usage.SHADOW + label)
        if len(names) > 1 and len(set(names)) != len(names):
            raise ValueError("charges: the same key and limit stand twice in one call; add up their costs instead.")
        for receipt in receipts:
            names.append(f"{prefix}{receipt.charge.key}{receipt.charge.limit.tag}".encode())
            records.append(_receipt(receipt, receipt.spent))
        field = _field(*lines) if mode in COUNTING else _NOTHING
        if now_us is None:
            opening = _opening_by_redis(mode, len(lines), len(receipts))
        else:
            opening = _opening(now_us, mode, len(lines), len(receipts))
        words = (self._compared_with(version), field, opening, *records, b"\r\n")
        return self._call_of(shard, names, words, _more(notes, counts) if notes or counts else ())

    def _undoing(self, verdicts: Sequence[Verdict], *, shard: int = 0) -> bytes:
        """A call that takes back what the check of these verdicts, not empty, has spent, carried and counted.

        What its refusals have spent stays spent. To be packed before the verdicts are marked as refunded.
        """
        receipts = [verdict for verdict in verdicts if verdict.spent or verdict.charge.carried]
        records = [_receipt(receipt, receipt.spent + receipt.charge.carried) for receipt in receipts]
        names = [self._name(receipt.charge) for receipt in receipts]
        field, opening = usage.field_of(verdicts), _opening(verdicts[0].at_us, Mode.UNDO, 0, len(receipts))
        return self._call_of(shard, names, (_NOTHING, _word(field.encode()), opening, *records, b"\r\n"))

    def _call_of(self, shard: int, names: Sequence[bytes], words: Iterable[bytes], more: Sequence[bytes] = ()) -> bytes:
        """The script's call with these counters, with three arguments that are packed already, and with more."""
        head = self._heads.get((shard, len(names)))
        if head is None:
            keys, key = b"%d" % (len(names) + 1), self._version_key(shard).encode()
            head = b"*%d\r\n" % (len(names) + 7) + b"".join(map(_word, (b"EVALSHA", CHECK_SHA, keys, key)))
            self._heads[shard, len(names)] = head
        if not more:
            return b"".join((head, *map(_word, names), *words))
        head = head.replace(b"*%d" % (len(names) + 7), b"*%d" % (len(names) + 7 + len(more)), 1)
        return b"".join((head, *map(_word, names), *words, *map(_word, more)))

    def _compared_with(self, version: int | Version | None) -> bytes:
        """The version as a packed word; it is the same in many calls."""
        kept = self._compared
        if kept[0] is not version:
            text = b"" if version is None else b"%d:%d" % as_version(version).order
            kept = self._compared = version, _word(text)
        return kept[1]

    def _terms(self, charge: Charge, now_us: int | None, times: Sequence[int] | None, index: int) -> bytes:
        """The packed terms of a limit whose terms differ from call to call."""
        at_us = times[index] if times else now() + self._ahead if now_us is None else now_us
        return charge.limit.packed_with(charge.limit.terms_at(at_us, charge.max_delay))

    def _times(self, reply: list[int], now_us: int | None) -> Sequence[int]:
        """What a reply says that begins with a negative number: raises StaleRules, or gives the charges' times."""
        if reply[0] == -1:
            if len(reply) == 1:  # it has lost its memory
                self._notes.forget()
            raise StaleRules(reply[2], reply[1]) if len(reply) == 3 else StaleRules(None)
        if now_us is None:
            self._ahead = reply[1] - now()
        return reply[2:]


def deletion(names: Sequence[bytes]) -> bytes:
    """A packed command that deletes these keys."""
    return b"*%d\r\n" % (len(names) + 1) + b"".join(map(_word, (b"DEL", *names)))


def _word(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


#: A word without a letter.
_NOTHING: Final = _word(b"")


@lru_cache(maxsize=1_000)
def _field(*lines: str) -> bytes:
    """The word of the field that charges of these labels are counted under, were all of them admitted."""
    labels = usage.labels_of(lines)
    return _word(f"{labels}\n{'a' * len(lines)}".encode()) if labels else _NOTHING


def _opening(now_us: int, mode: Mode, charges: int, receipts: int) -> bytes:
    """What the last argument begins with; its size is that of all the records that are to follow."""
    size = _OPENING + _RECORD * (charges + receipts)
    return b"$%d\r\n" % size + pack("<dddd", now_us, charges, receipts, mode)


_opening_by_redis: Final = lru_cache(maxsize=1_000)(partial(_opening, -1))


def _cost(charge: Charge) -> bytes:
    check_units(charge)
    flags = _FLAGS[charge.gating, charge.count_refusals] + 4 * min(charge.carried, MOST_UNITS)
    return pack("<dd", min(charge.cost, EXACT), flags)


def _receipt(verdict: Verdict, units: int) -> bytes:
    limit, at = verdict.charge.limit, verdict.spent_at_us
    return limit.packed_with(limit.terms_at(at)) + pack("<dd", min(units, EXACT), at)


def _more(notes: Sequence[Note], counts: usage.Held | None) -> list[bytes]:
    """What stands behind the three arguments of every call."""
    words = [b"%d" % len(notes)]
    for what, label, partition, _ in notes:
        words += bytes(what), label.encode(), partition.encode()
    if counts:
        words.append(counts.id.encode())
        for minute, field, calls in counts.entries:
            words += b"%d" % minute, field.encode(), b"%d" % calls
    return words


def read(reply: list[int], charges: Sequence[Charge], *, spending: bool, refused: bool = False) -> list[Verdict]:
    """The reply of check.lua as verdicts, in the order of the charges. refused: asked in Mode.REFUSED."""
    at, waits = reply[0], reply[2::4]
    denied = refused or (any(waits) and any(wait > 0 or wait == -1 for wait in compress(waits, map(_GATES, charges))))
    verdicts = []
    for charge, remaining, wait, reset, lead in zip(charges, reply[1::4], waits, reply[3::4], reply[4::4], strict=True):
        limit, cost, delay = charge.limit, charge.cost, 0.0
        allowed = wait == 0
        if wait < -1:
            allowed, wait, delay = True, 0, (-1 - wait) / 1_000_000
        spends = allowed and not denied
        soft = spends and (remaining if spending else remaining - cost) < limit.terms.soft_floor
        if limit.holds and charge.max_delay is not None and reset - lead > limit.terms_at(0, charge.max_delay).extra:
            remaining = 0
        verdicts.append(
            Verdict(
                allowed,
                remaining,
                None if wait < 0 else wait / 1_000_000,
                reset / 1_000_000,
                delay,
                soft,
                at,
                charge,
                cost if spends and spending else 0,
                at + lead,
            )
        )
    return verdicts


def receipts_of(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that spent something, each once."""
    if verdicts == ():
        return []
    return list({id(verdict): verdict for verdict in verdicts if verdict.spent}.values())


def settle(receipts: Iterable[Verdict], verdicts: Iterable[Verdict], *, refused: bool = False) -> None:
    """Note that the receipts were given back, if one of the verdicts, or somebody before, has refused the call."""
    if receipts and (refused or any(not verdict.allowed and verdict.charge.gating for verdict in verdicts)):
        mark_refunded(receipts)


def mark_refunded(receipts: Iterable[Verdict]) -> None:
    """Note that they were given back."""
    for receipt in receipts:
        receipt.mark_refunded()


def now() -> int:
    """This process's time in microseconds since the Unix epoch."""
    return time.time_ns() // 1_000
