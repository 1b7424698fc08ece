"""Packs charges into one call of check.lua, an EVALSHA, and reads its reply. Sends nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from ...exceptions import StaleRules
from .. import usage
from ..base import Charge, Verdict, Version, WrongServer, as_version, receipts_of
from ..call import Answer, Call
from ..limits import check_time
from ..partition_stats import MINUTE_US
from .packing import (
    EMPTY,
    RECENT,
    CallFormats,
    bulk_string,
    cost_of,
    keys_of_more,
    more_of,
    opening_by_redis,
    opening_of,
    packed_field,
    packed_of,
    receipt_of,
)
from .partition_notes import PartitionNote, PartitionTracker, notes_of_units
from .scripts import CHECK_SHA

#: Maximum number of times that a call is sent, each time for the minute and the calendar windows of Redis's last reply.
ATTEMPTS: Final = 4
OUT_OF_TIME: Final = f"The time of Redis left its minute or calendar windows {ATTEMPTS} times during one call."

#: The year 2001. On some servers, scripts have no clock, and their time is 0.
EARLIEST_US: Final = 10**15
_NO_CLOCK: Final = "Scripts on this server cannot read the time. Set RATELIMITER['CLOCK'] = \"client\"."


class ScriptMode:
    """The modes of check.lua, which describes them. Numbers, because members of an Enum are read slowly."""

    CHECK: Final = 0
    PEEK: Final = 1
    REFUND: Final = 2
    PUBLISH: Final = 3
    REJECTED: Final = 4
    UNDO: Final = 5
    #: To be added for each receipt that the call gives back before it is decided.
    RETURNED: Final = 8


#: The clocks that calls may be decided by: that of Redis, and that of this process.
CLOCKS: Final = ("server", "client")

#: Maximum number of cached beginnings of calls; above that, all are made again.
MAX_CACHED_HEADS: Final = 5_000

#: The modes in which a decision is counted.
COUNTING: Final = (ScriptMode.CHECK, ScriptMode.REJECTED)


class CallEncoder:
    """Makes the names of keys and packs calls, for one namespace. The engines inherit from it.

    namespace: the beginning of all keys. shards: the number of hash tags that the keys are spread over; a call has keys
    of one shard. clock: "server" = the time of Redis; "client" = the time of this process, which each call sends.
    """

    def __init__(self, namespace: str, shards: int = 1, clock: str = "server") -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ValueError(f"namespace: must be some text without braces, not {namespace!r}.")
        self.namespace = namespace
        self.shards = shards
        self._prefixes = [f"{{{namespace}:{shard}}}:" for shard in range(shards)]
        if clock not in CLOCKS:
            raise ValueError(f"clock: must be one of {', '.join(CLOCKS)}, not {clock!r}.")
        self.clock = clock
        #: True if calls are packed by their template.
        self._uses_templates = shards == 1 and clock == "server"
        #: The beginnings of calls, each with the minute that it is for.
        self._heads: dict[tuple[int, int, int, bool], tuple[int | None, bytes]] = {}
        #: The latest version, and its word in a call.
        self._version_word: tuple[int | Version | None, bytes] = None, bulk_string(b"")
        self._formats = CallFormats(self._encode_format)
        self._partition_tracker = PartitionTracker()
        #: Microseconds that the clock of Redis is ahead of ours, as its last reply with another minute has shown.
        self._clock_ahead = 0

    def shard_of(self, charge: Charge) -> int:
        """Return the shard of a charge, by its partition."""
        if self.shards == 1:
            return 0
        return crc32((charge.key if charge.partition is None else charge.partition).encode()) % self.shards

    def prefix(self, shard: int) -> str:
        """Return the beginning of all keys of a shard."""
        return self._prefixes[shard]

    def version_key(self, shard: int) -> str:
        """Return the name of the key that holds the version in a shard."""
        return f"{self.prefix(shard)}version"

    def _name(self, charge: Charge) -> bytes:
        return f"{self.prefix(self.shard_of(charge))}{charge.key}{charge.limit.tag}".encode()

    def stored_name(self, charge: Charge) -> str:
        """Return the name of the key that holds the counter of a charge."""
        return self._name(charge).decode()

    def time_to_send(self) -> int | None:
        """Return the time that a call sends, in microseconds; `None` = the script asks Redis."""
        return now() if self.clock == "client" else None

    def estimate_time(self, now_us: int | None) -> int:
        """Return an estimate of the time that a call is decided at, in microseconds. now_us: the time that it sends."""
        return now() + self._clock_ahead if now_us is None else now_us

    def encode(
        self,
        mode: int,
        call: Call,
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        times: Sequence[int],
        *,
        shard: int = 0,
        counts: usage.UsageCarry | None = None,
        notes: Sequence[PartitionNote] = (),
    ) -> bytes:
        """Return one packed call for charges and receipts of the same shard.

        now_us: the time that the call sends. times: the estimated time of the call; after a reply that names other
        times, these: of Redis, then by the clock of each charge. counts: usage that this process has counted.
        notes: of the partitions.
        """
        if now_us is not None:
            check_time(now_us)
        prefix = self._prefixes[shard]
        common = call.template.packed or packed_of(call.template)
        names = [f"{prefix}{name}".encode() for name in call.names()]
        records = [common.records] if common.records and not call.wants else self._records(call, times)
        if call.returned:
            returned = receipts_of(call.returned)
            receipts, mode = [*returned, *receipts], mode + ScriptMode.RETURNED * len(returned)
        for receipt in receipts:
            names.append(f"{prefix}{receipt.charge.key}{receipt.charge.limit.tag}".encode())
            records.append(receipt_of(receipt, receipt.spent))
        field, charges = EMPTY, len(call.partitions)
        if mode % ScriptMode.RETURNED in COUNTING:
            field, notes = common.field, [*notes_of_units(call), *notes]
            if call.so_far or call.template.counts_callers:
                field = packed_field(call, call.so_far, times[0] // MINUTE_US)
        minute = None if field is EMPTY and not (notes or counts) else times[0] // MINUTE_US
        if now_us is None:
            opening = opening_by_redis(mode, charges, len(receipts), minute)
        else:
            opening = opening_of(now_us, mode, charges, len(receipts), minute)
        words = (self._word_of_version(version), field, opening, *records, b"\r\n")
        if minute is not None and (notes or counts):
            keys = keys_of_more(prefix, minute, notes, counts)
            return self._call_of(shard, names, words, minute, keys, more_of(notes, counts))
        return self._call_of(shard, names, words, minute)

    def encode_filled(self, call: Call, version: int | Version | None) -> bytes | None:
        """Return the packed call that checks these charges, without creating them; `None` = `encode` must pack it."""
        template = call.template
        is_fixed = template.is_filled and (template.packed or packed_of(template)).records
        if not (is_fixed and self._uses_templates) or call.so_far or self._partition_tracker.waiting:
            return None
        minute = int(time.time() / 60 + self._clock_ahead / MINUTE_US)  # Python divides large integers slowly
        return self._formats.fill(call, version, minute, self._partition_tracker.kind_of(call, minute))

    def _encode_format(
        self, call: Call, version: int | Version | None, minute: int, notes: Sequence[PartitionNote]
    ) -> bytes:
        return self.encode(ScriptMode.CHECK, call, (), version, None, (minute * MINUTE_US,), notes=notes)

    def encode_undo(self, answer: Answer, *, shard: int = 0) -> bytes:
        """Return a call that undoes a check: what its verdicts have spent, and its usage.

        Counted rejections stay charged. answer: of the check, to at least one charge. Pack it before its verdicts are
        marked as refunded.
        """
        receipts = [verdict for verdict in answer if verdict.spent]
        records = [receipt_of(receipt, receipt.spent) for receipt in receipts]
        names, at_us = [self._name(receipt.charge) for receipt in receipts], answer[0].at_us
        field = usage.field_of(answer, is_rejected=answer.is_rejected, so_far=answer.charges.so_far)
        minute = at_us // MINUTE_US if field else None
        opening = opening_of(at_us, ScriptMode.UNDO, 0, len(receipts), minute)
        words = (EMPTY, bulk_string(field.encode()), opening, *records, b"\r\n")
        extras = usage.extras_after(answer.charges, answer, is_rejected=answer.is_rejected)
        if minute is None or not extras:
            return self._call_of(shard, names, words, minute)
        counts = usage.UsageCarry("", tuple((minute, each.field, -each.units) for each in extras))
        keys = keys_of_more(self._prefixes[shard], minute, (), counts)
        return self._call_of(shard, names, words, minute, keys, more_of((), counts))

    def _call_of(
        self,
        shard: int,
        names: Sequence[bytes],
        words: Iterable[bytes],
        minute: int | None,
        keys: Sequence[bytes] = (),
        more: Sequence[bytes] = (),
    ) -> bytes:
        """Return a call with these counters.

        words: the three arguments of every call, packed. minute: in which usage is counted; `None` = none is.
        keys: more keys, packed. more: more arguments.
        """
        number = len(names) + len(keys)
        kind = shard, number, len(more), minute is None
        head = self._heads.get(kind)
        if head is None or head[0] != minute:
            if len(self._heads) >= MAX_CACHED_HEADS:
                self._heads.clear()
            head = self._heads[kind] = minute, self._head(shard, number, len(more), minute)
        counters = [b"$%d\r\n%b\r\n" % (len(name), name) for name in names]  # as `bulk_string`, but not one by one
        return b"".join([head[1], *counters, *keys, *words, *map(bulk_string, more)])

    def _head(self, shard: int, number: int, more: int, minute: int | None) -> bytes:
        """Return a call up to its counters. number: of keys from there on. more: number of additional arguments."""
        prefix, keys = self._prefixes[shard], [self.version_key(shard).encode()]
        if minute is not None:
            keys += f"{prefix}usage:{minute}".encode(), f"{prefix}{RECENT}".encode()
        start = (b"EVALSHA", CHECK_SHA, b"%d" % (len(keys) + number), *keys)
        return b"*%d\r\n" % (len(start) + number + 3 + more) + b"".join(map(bulk_string, start))

    def _word_of_version(self, version: int | Version | None) -> bytes:
        """Return the packed version, which is the same in many calls."""
        cached = self._version_word
        if cached[0] is not version:
            text = b"" if version is None else b"%d:%d" % as_version(version).order
            cached = self._version_word = version, bulk_string(text)
        return cached[1]

    def _records(self, call: Call, times: Sequence[int]) -> list[bytes]:
        """Return the records of charges that want units, or whose limits' terms differ from call to call."""
        records = []
        for place, charge in enumerate(call):
            limit, at_us = charge.limit, times[0] if len(times) == 1 else times[1 + place]
            records.append(
                limit.packed if limit.is_fixed else limit.packed_with(limit.terms_at(at_us, charge.max_delay))
            )
            records.append(cost_of(charge, call.wants[place] if call.wants else 0))
        return records

    def decode_retry(self, reply: list[int], now_us: int | None) -> Sequence[int]:
        """Return the times of a reply without a result. Raises StaleRules if the reply is about the version."""
        if reply[0] == -1:
            raise StaleRules(reply[2], reply[1]) if len(reply) == 3 else StaleRules(None)
        if now_us is None:
            if reply[1] < EARLIEST_US:
                raise WrongServer(_NO_CLOCK)
            self._clock_ahead = reply[1] - now()
        return reply[1:]


def now() -> int:
    """Return this process's time in microseconds since the Unix epoch."""
    return time.time_ns() // 1_000
