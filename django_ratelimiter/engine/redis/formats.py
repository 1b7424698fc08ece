"""Calls with holes for partitions, which are packed once a minute for all callers of a template, and then filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..base import Version
from ..base import noted as written
from ..call import Call, CallTemplate
from ..shapes import CallFormat
from .packing import FLAGS, bulk_string, flags_of, packed_of
from .partition_notes import NoteKind, PartitionNote, notes_of

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
        size, flags = form.size, form.flags
        words = partitions
        if flags:
            words += tuple([flags_of(*each).decode("latin-1") for each in zip(flags, wants, strict=True)])
        for place in form.noted:  # with its tail, so that its length differs
            word = bulk_string(written(partitions[place]).encode()).decode("latin-1")
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
        parts = [part for before in text.split(_HOLE) for part in (before, "")][:-1]
        if len(formats) >= MAX_FORMATS:
            formats.clear()
        noted = tuple([note.place for note in notes])
        form = formats[kind] = CallFormat(minute, version, parts, size, noted, tuple(flags))
        return form
