"""The plan of a call: charges packed into one EVALSHA of check.lua, and its reply read. Speaks to no server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import pack
from typing import Final
from zlib import crc32

from ..exceptions import StaleRules
from . import usage
from .base import Charge, Verdict, Version, as_version, check_units
from .limits import EXACT, MOST_UNITS, check_time
from .scripts import CHECK_SHA

#: How often a call is sent, each time with the calendar windows of the time that Redis has named.
ATTEMPTS: Final = 4
OUT_OF_TIME: Final = f"The time of Redis left its calendar windows {ATTEMPTS} times during one call."

_FLAGS: Final = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}
_COST_ONE: Final = {flags: pack("<dd", 1, flags) for flags in _FLAGS.values()}


class Mode(IntEnum):
    """What check.lua is to do."""

    CHECK = 0
    PEEK = 1
    REFUND = 2
    PUBLISH = 3
    REFUSED = 4
    UNDO = 5


class Planner:
    """Names keys and packs calls for one namespace; an engine is a planner that can ask.

    namespace: what all keys begin with. shards: among how many hash tags the keys are spread; one call speaks to one.
    """

    def __init__(self, namespace: str, shards: int = 1) -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ValueError(f"namespace: must be some text without braces, not {namespace!r}.")
        self.namespace = namespace
        self.shards = shards
        self._heads: dict[tuple[int, int], bytes] = {}
        self._ahead = 0  # what the clock of Redis is ahead of ours, as far as calendars have shown

    def shard_of(self, charge: Charge) -> int:
        """The shard of a charge, by its partition."""
        if self.shards == 1:
            return 0
        return crc32((charge.key if charge.partition is None else charge.partition).encode()) % self.shards

    def _prefix(self, shard: int) -> str:
        """What the keys of a shard begin with."""
        return f"{{{self.namespace}:{shard}}}:"

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
    ) -> bytes:
        """One call, to the one shard that all of these lie in.

        times: by the clock of each charge, where Redis has named them. counts: usage that was held in this process.
        """
        if now_us is not None:
            check_time(now_us)
        names = [self._name(charge) for charge in charges]
        if len(names) > 1 and len(set(names)) != len(names):
            raise ValueError("charges: the same key and limit stand twice in one call; add up their costs instead.")
        blob = [pack("<dddd", -1 if now_us is None else now_us, len(charges), len(receipts), mode)]
        for index, charge in enumerate(charges):
            limit = charge.limit
            blob.append(
                limit.packed if limit.is_fixed else self._terms(charge, now_us, times[index] if times else None)
            )
            blob.append(_cost(charge))
        for receipt in receipts:
            names.append(self._name(receipt.charge))
            blob.append(_receipt(receipt, receipt.spent))
        compared = b"" if version is None else b"%d:%d" % as_version(version).order
        labels = usage.labels_of(charges).encode() if mode in (Mode.CHECK, Mode.REFUSED) else b""
        return self._call_of(shard, names, (compared, labels, b"".join(blob), *_held(counts)))

    def _undoing(self, verdicts: Sequence[Verdict], *, shard: int = 0) -> bytes:
        """A call that takes back what the check of these verdicts, not empty, has spent, carried and counted.

        What its refusals have spent stays spent. To be packed before the verdicts are marked as refunded.
        """
        receipts = [verdict for verdict in verdicts if verdict.spent or verdict.charge.carried]
        blob = [pack("<dddd", verdicts[0].at_us, 0, len(receipts), Mode.UNDO)]
        blob += [_receipt(receipt, receipt.spent + receipt.charge.carried) for receipt in receipts]
        names = [self._name(receipt.charge) for receipt in receipts]
        return self._call_of(shard, names, (b"", usage.field_of(verdicts).encode(), b"".join(blob)))

    def _call_of(self, shard: int, names: Sequence[bytes], words: Sequence[bytes]) -> bytes:
        """The script's call with these counters and arguments."""
        count = b"*%d\r\n" % (len(names) + len(words) + 4)
        return b"".join((count, self._head(shard, len(names)), *map(_word, names), *map(_word, words)))

    def _terms(self, charge: Charge, now_us: int | None, at_us: int | None) -> bytes:
        """The packed terms of a limit whose terms differ from call to call."""
        if at_us is None:
            at_us = now() + self._ahead if now_us is None else now_us
        return charge.limit.packed_with(charge.limit.terms_at(at_us, charge.max_delay))

    def _head(self, shard: int, counters: int) -> bytes:
        """What a packed call with so many counters begins with, once its words are counted: up to the version key."""
        head = self._heads.get((shard, counters))
        if head is None:
            keys, key = b"%d" % (counters + 1), self._version_key(shard).encode()
            head = self._heads[shard, counters] = b"".join(map(_word, (b"EVALSHA", CHECK_SHA, keys, key)))
        return head

    def _times(self, reply: list[int], now_us: int | None) -> Sequence[int]:
        """What a reply says that begins with a negative number: raises StaleRules, or gives the charges' times."""
        if reply[0] == -1:
            raise StaleRules(reply[2], reply[1]) if len(reply) == 3 else StaleRules(None)
        if now_us is None:
            self._ahead = reply[1] - now()
        return reply[2:]


def deletion(names: Sequence[bytes]) -> bytes:
    """A packed command that deletes these keys."""
    return b"*%d\r\n" % (len(names) + 1) + b"".join(map(_word, (b"DEL", *names)))


def _word(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def _cost(charge: Charge) -> bytes:
    check_units(charge)
    cost, flags, carried = charge.cost, _FLAGS[charge.gating, charge.count_refusals], charge.carried
    if carried:
        flags += 4 * min(carried, MOST_UNITS)
    return _COST_ONE[flags] if cost == 1 and not carried else pack("<dd", min(cost, EXACT), flags)


def _receipt(verdict: Verdict, units: int) -> bytes:
    limit, at = verdict.charge.limit, verdict.spent_at_us
    return limit.packed_with(limit.terms_at(at)) + pack("<dd", min(units, EXACT), at)


def _held(counts: usage.Held | None) -> tuple[bytes, ...]:
    """The words of counts that were held."""
    if not counts:
        return ()
    words = [counts.id.encode()]
    for minute, field, calls in counts.entries:
        words += b"%d" % minute, field.encode(), b"%d" % calls
    return tuple(words)


def read(reply: list[int], charges: Sequence[Charge], *, spending: bool, refused: bool = False) -> list[Verdict]:
    """The reply of check.lua as verdicts, in the order of the charges. refused: asked in Mode.REFUSED."""
    at = reply[0]
    waits = reply[2::4]
    denied = refused or any(
        (wait > 0 or wait == -1) and charge.gating for wait, charge in zip(waits, charges, strict=True)
    )
    verdicts = []
    for charge, remaining, wait, reset, lead in zip(charges, reply[1::4], waits, reply[3::4], reply[4::4], strict=True):
        limit, allowed, delay = charge.limit, wait == 0, 0.0
        if wait < -1:
            allowed, wait, delay = True, 0, (-1 - wait) / 1_000_000
        spent = charge.cost if spending and allowed and not denied else 0
        left = remaining if spending else remaining - charge.cost
        soft = allowed and not denied and left < limit.terms.soft_floor
        if limit.holds and charge.max_delay is not None and reset - lead > limit.terms_at(0, charge.max_delay).extra:
            remaining = 0
        retry_after = None if wait < 0 else wait / 1_000_000
        verdicts.append(
            Verdict(allowed, remaining, retry_after, reset / 1_000_000, delay, soft, at, charge, spent, at + lead)
        )
    return verdicts


def receipts_of(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that spent something, each once."""
    return list({id(verdict): verdict for verdict in verdicts if verdict.spent}.values())


def settle(receipts: Iterable[Verdict], verdicts: Iterable[Verdict], *, refused: bool = False) -> None:
    """Note that the receipts were given back, if one of the verdicts, or somebody before, has refused the call."""
    if refused or any(not verdict.allowed and verdict.charge.gating for verdict in verdicts):
        mark_refunded(receipts)


def mark_refunded(receipts: Iterable[Verdict]) -> None:
    """Note that they were given back."""
    for receipt in receipts:
        receipt.mark_refunded()


def now() -> int:
    """This process's time in microseconds since the Unix epoch."""
    return time.time_ns() // 1_000
