"""The bytes of a call: its words, the records of charges and receipts, and the keys that only some calls have.

Calls with holes for partitions are packed once a minute for all callers of a template, and then filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from random import getrandbits
from struct import pack
from typing import Final

from .. import usage
from ..base import Charge, Counted, Verdict, Version, noted
from ..call import Call, CallTemplate
from ..limits import EXACT, MAX_UNITS
from ..partition_stats import rule_of
from ..shapes import CallFormat, Packed
from .partition_notes import NoteKind, PartitionNote, notes_of

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
        template.packed = Packed(records, EMPTY if template.counts_callers else packed_field(charges), {})
    return template.packed


def packed_field(charges: Sequence[Charge], so_far: Sequence[Counted] = (), minute: int = 0) -> bytes:
    """Return the field that counts these charges in this minute if all are allowed, packed. so_far: see `Call`."""
    field = usage.joined(usage.lines_of(charges), "a" * len(charges), so_far, minute)
    return bulk_string(field.encode()) if field else EMPTY


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
        if sampled not in (2, 3):
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
    names = [f"allowed:{hour}:{rule}", f"rejected:{hour}:{rule}"] if weighs or is_sampled > 1 else []
    names += ["hours"] if weighs else []
    names += [f"sample:{minute}", "sampled"] if is_sampled == 1 else []
    return [bulk_string(f"{prefix}{name}".encode()) for name in names]


#: The partition that is packed into a hole: as long as a digest, but never equal to one.
_HOLE: Final = "\x00hole of a partition\x00\x01"

#: Maximum number of cached formats of a template; above that, all are made again.
MAX_FORMATS: Final = 200

#: Packs a check of this call, with this version, in this minute, and with these notes.
Encode = Callable[[Call, int | Version | None, int, Sequence[PartitionNote]], bytes]

#: The wanted units that are packed into a hole: more than any process wants.
_WANTED: Final = 0x5AFE_C0DE_CAFE

#: The key of a format: what has packed it, the kind of its notes, and whether its calls want units.
Kind = tuple["CallFormats", NoteKind, bool]


class CallFormats:
    """The formats of an engine. Each template holds its own.

    encode: packs a new format.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    def fill(
        self,
        charges: Call,
        version: int | Version | None,
        minute: int,
        notes: NoteKind,
    ) -> bytes | None:
        """Return the call of a caller; `None` if partitions do not have the length of digests."""
        template, partitions, wants = charges.template, charges.partitions, charges.wants
        formats = (template.packed or packed_of(template)).formats
        form = formats.get(kind := (self, notes, bool(wants)))
        if form is None or form.minute != minute or form.version is not version:
            form = self._keep(formats, template, kind, version, minute)
        size, words = form.size, partitions
        if form.varies:
            varied = [flags_of(*each).decode("latin-1") for each in zip(form.flags, wants, strict=True)]
            for length, places in form.lines:
                callers = [partitions[each] + getattr(partitions[each], "tail", "") for each in places]
                chars = sum(map(len, callers))
                varied += f"{length + chars}", *callers
                size += chars + len(varied[-1 - len(callers)])
            words = (*partitions, *varied)
        for place in form.noted:  # with its tail, so that its length differs
            word = bulk_string(noted(partitions[place]).encode()).decode("latin-1")
            words, size = (*words, word), size + len(word)
        parts = form.parts.copy()
        parts[1::2] = words
        call = "".join(parts)  # encoding it at once is faster than each word
        return call.encode("latin-1") if len(call) == size else None

    def _keep(
        self,
        formats: dict[object, CallFormat],
        template: CallTemplate,
        kind: Kind,
        version: int | Version | None,
        minute: int,
    ) -> CallFormat:
        _, note_kind, fetches = kind
        number = len(template.templates)
        charges = Call(template, (_HOLE,) * number, (_WANTED,) * number if fetches else ())
        flags = [FLAGS[charge.gating, charge.count_refusals] for charge in charges if fetches]
        notes = notes_of(charges, *note_kind)
        call = self._encode(charges, version, minute, notes)
        word = bulk_string(_HOLE.encode())  # only that of a note
        size = len(call) - len(word) * call.count(word)
        text = call.replace(word, _HOLE.encode()).decode("latin-1")
        for each in set(flags):
            text = text.replace(flags_of(each, _WANTED).decode("latin-1"), _HOLE)
        lines = []
        if template.counts_callers:
            exact = [place for place, charge in enumerate(charges) if charge.usage is not None and charge.exact]
            fields = [(packed_field(charges), exact)]
            fields += [(bulk_string(each.field.encode()), [each.places[0]]) for each in usage.extras_of(charges)]
            for packed, named in fields:
                if holes := (line := packed.decode("latin-1")).count(_HOLE):
                    head, body = line[1:].split("\r\n", 1)
                    text = text.replace(line, f"${_HOLE}\r\n{body}", 1)
                    size -= len(head) + holes * len(_HOLE)
                    lines.append((int(head) - holes * len(_HOLE), named))
        parts = [part for before in text.split(_HOLE) for part in (before, "")][:-1]
        if len(formats) >= MAX_FORMATS:
            formats.clear()
        if lines and flags:
            size = -1  # their words alternate: `encode` must pack such calls, which are rare
        places = tuple([note.place for note in notes])
        form = CallFormat(minute, version, parts, size, places, tuple(flags), tuple(lines), bool(flags or lines))
        formats[kind] = form
        return form
