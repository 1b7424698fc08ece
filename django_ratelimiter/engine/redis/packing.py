"""The bytes of a call: its words, the records of charges and receipts, and the keys that only some calls have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from random import getrandbits
from struct import pack
from typing import Final

from .. import usage
from ..base import Charge, Verdict, check_units
from ..limits import EXACT, MAX_UNITS
from .partition_notes import IS_SAMPLED, PartitionNote, keys_of

#: The flags of a charge that carries nothing, by whether it may reject the call and counts its refusals.
FLAGS: Final = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}
COST_ONE: Final = {key: pack("<dd", 1, flags) for key, flags in FLAGS.items()}

#: What tells the usage keys apart that calls of one time begin; a double holds it exactly.
_MARK_BITS: Final = 52

#: The bytes of a call's first doubles, and of those that each charge or receipt has.
_OPENING, _RECORD = 6 * 8, 9 * 8


def bulk_string(text: bytes) -> bytes:
    """A word of a command as it is sent."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def command(*words: str | bytes) -> bytes:
    """Return a command as it is sent."""
    encoded = [each.encode() if isinstance(each, str) else each for each in words]
    return b"*%d\r\n" % len(encoded) + b"".join(map(bulk_string, encoded))


def text_of(name: str | bytes) -> str:
    """Return a name that a client has read, which may decode replies."""
    return name.decode() if isinstance(name, bytes) else name


#: The key of a shard's minutes that are not closed, and of its recent refusals, behind what all its keys begin with.
RECENT: Final = "recent"

#: A word without a letter.
EMPTY: Final = bulk_string(b"")


@lru_cache(maxsize=1_000)
def field_bulk_string(*lines: str) -> bytes:
    """The word of the field that charges of these labels are counted under, if all of them are allowed."""
    labels = usage.labels_of(lines)
    return bulk_string(f"{labels}\n{'a' * len(lines)}".encode()) if labels else EMPTY


def opening_of(now_us: int, mode: int, charges: int, receipts: int, minute: int | None) -> bytes:
    """What the last argument begins with; its size is that of all the records that are to follow.

    minute: the one that usage is counted in; `None` = nothing is.
    """
    size, mark = _OPENING + _RECORD * (charges + receipts), 0 if now_us < 0 else getrandbits(_MARK_BITS)
    usage_minute = -1 if minute is None else minute
    return b"$%d\r\n" % size + pack("<dddddd", now_us, charges, receipts, mode, usage_minute, mark)


opening_by_redis: Final = lru_cache(maxsize=1_000)(partial(opening_of, -1))


def cost_of(charge: Charge) -> bytes:
    """The end of a charge's record: its cost and flags. ValueError where its units are no whole numbers."""
    check_units(charge)
    return pack("<d", min(charge.cost, EXACT)) + flags_of(FLAGS[charge.gating, charge.count_refusals], charge.carried)


def flags_of(flags: int, carried: int) -> bytes:
    """The last number of a charge's record. flags: of `FLAGS`. carried: units."""
    return pack("<d", flags + 4 * min(carried, MAX_UNITS))


def receipt_of(verdict: Verdict, units: int) -> bytes:
    """The record of what a verdict has spent. units: to give back."""
    limit, at = verdict.charge.limit, verdict.spent_at_us
    return limit.packed_with(limit.terms_at(at)) + pack("<dd", min(units, EXACT), at)


def more_of(notes: Sequence[PartitionNote], counts: usage.UsageCarry | None) -> list[bytes]:
    """What stands behind the three arguments of every call."""
    words = [b"%d" % len(notes)]
    for what, label, partition, _ in notes:
        words += bytes(what), label.encode(), partition.encode()
    if counts:
        words.append(counts.id.encode())
        for minute, field, calls in counts.entries:
            words += b"%d" % minute, field.encode(), b"%d" % calls
    return words


def keys_of_more(
    prefix: str, minute: int, notes: Sequence[PartitionNote], counts: usage.UsageCarry | None
) -> list[bytes]:
    """The packed names of the keys that stand behind the counters."""
    keys: list[bytes] = []
    for (flags, weight, *_), label, _, _ in notes:
        first = minute if flags & IS_SAMPLED else minute // 60 * 60  # of the hour, and so the same for longer
        keys += _keys_of_note(prefix, flags, weight > 0, label, first)
    if counts:
        if counts.id:
            keys.append(bulk_string(f"{prefix}held:{counts.id}".encode()))
        keys += [bulk_string(f"{prefix}usage:{entry[0]}".encode()) for entry in counts.entries]
    return keys


@lru_cache(maxsize=1_000)
def _keys_of_note(prefix: str, flags: int, weighs: bool, label: str, minute: int) -> list[bytes]:
    return [bulk_string(f"{prefix}{name}".encode()) for name in keys_of(flags, weighs, label, minute)]
