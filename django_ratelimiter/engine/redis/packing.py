"""The bytes of a call: its words, the records of charges and receipts, and the keys that only some calls have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from random import getrandbits
from struct import pack
from typing import Final

from .. import usage
from ..base import Charge, Verdict, noted
from ..call import CallTemplate
from ..limits import EXACT, MAX_UNITS
from ..partition_stats import rule_of
from ..shapes import Packed
from .partition_notes import PartitionNote

#: The flags of a charge that wants nothing, by `gating` and `count_refusals`.
FLAGS: Final = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}

#: Bits of the random number that distinguishes usage keys which began at the same time; a double holds it exactly.
_MARK_BITS: Final = 52

#: Bytes of the first doubles of a call, and of the doubles of each charge or receipt.
_OPENING, _RECORD = 6 * 8, 9 * 8


def bulk_string(text: bytes) -> bytes:
    """Return a word of a command as it is sent."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def command(*words: str | bytes) -> bytes:
    """Return a command as it is sent."""
    encoded = [each.encode() if isinstance(each, str) else each for each in words]
    return b"*%d\r\n" % len(encoded) + b"".join(map(bulk_string, encoded))


def text_of(name: str | bytes) -> str:
    """Return the text of a reply; some clients have decoded it already."""
    return name.decode() if isinstance(name, bytes) else name


#: The key of a shard's open minutes and recent rejections, without its prefix.
RECENT: Final = "recent"

#: An empty word.
EMPTY: Final = bulk_string(b"")


def opening_of(now_us: int, mode: int, charges: int, receipts: int, minute: int | None) -> bytes:
    """Return the beginning of the last argument, whose size includes the records after it.

    now_us: the time that the call sends; below 0 = none. minute: in which usage is counted; `None` = none is.
    """
    size, mark = _OPENING + _RECORD * (charges + receipts), 0 if now_us < 0 else getrandbits(_MARK_BITS)
    usage_minute = -1 if minute is None else minute
    return b"$%d\r\n" % size + pack("<dddddd", now_us, charges, receipts, mode, usage_minute, mark)


#: `opening_of` a call that sends no time.
opening_by_redis: Final = lru_cache(maxsize=1_000)(partial(opening_of, -1))


def cost_of(charge: Charge, want: int = 0) -> bytes:
    """Return the end of a charge's record: cost and flags."""
    flags = FLAGS[charge.gating, charge.count_refusals]
    return pack("<d", min(charge.cost, EXACT)) + flags_of(flags, want)


def flags_of(flags: int, want: int) -> bytes:
    """Return the last number of a charge's record. flags: of `FLAGS`. want: units in advance."""
    return pack("<d", flags + 4 * min(want, MAX_UNITS))


def packed_of(template: CallTemplate) -> Packed:
    """Return what all calls of a template have in common, which is made once."""
    if template.packed is None:
        charges = template.charges
        is_fixed = all(charge.limit.is_fixed for charge in charges)
        records = b"".join([charge.limit.packed + cost_of(charge) for charge in charges if is_fixed])
        field = usage.joined(usage.lines_of(charges), "a" * len(charges), template.so_far)
        template.packed = Packed(records, bulk_string(field.encode()) if field else EMPTY, {})
    return template.packed


def receipt_of(verdict: Verdict, units: int) -> bytes:
    """Return the record of a refund. units: to refund."""
    limit, at = verdict.charge.limit, verdict.spent_at_us
    return limit.packed_with(limit.terms_at(at)) + pack("<dd", min(units, EXACT), at)


def more_of(notes: Sequence[PartitionNote], counts: usage.UsageCarry | None) -> list[bytes]:
    """Return the arguments after the three of every call."""
    words = [b"%d" % len(notes)]
    for what, label, partition, _ in notes:
        words += bytes(what), label.encode(), noted(partition).encode()
    if counts:
        words.append(counts.id.encode())
        for minute, field, calls in counts.entries:
            words += b"%d" % minute, field.encode(), b"%d" % calls
    return words


def keys_of_more(
    prefix: str, minute: int, notes: Sequence[PartitionNote], counts: usage.UsageCarry | None
) -> list[bytes]:
    """Return the packed keys after the counters."""
    keys: list[bytes] = []
    for (sampled, weight, *_), label, _, _ in notes:
        first = minute if sampled else minute // 60 * 60  # the first of the hour, so that it is cached for longer
        keys += _keys_of_note(prefix, sampled, weight > 0, label, first)
    if counts:
        if counts.id:
            keys.append(bulk_string(f"{prefix}held:{counts.id}".encode()))
        keys += [bulk_string(f"{prefix}usage:{entry[0]}".encode()) for entry in counts.entries]
    return keys


@lru_cache(maxsize=1_000)
def _keys_of_note(prefix: str, is_sampled: int, weighs: bool, label: str, minute: int) -> list[bytes]:
    """Return the packed keys of a note, in the order of check.lua."""
    hour, rule = minute // 60, rule_of(label)
    names = [f"allowed:{hour}:{rule}", f"rejected:{hour}:{rule}", "hours"] if weighs else []
    names += [f"sample:{minute}", "sampled"] if is_sampled else []
    return [bulk_string(f"{prefix}{name}".encode()) for name in names]
