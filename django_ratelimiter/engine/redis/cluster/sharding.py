"""Calls with keys in several shards: one call to each shard, in ascending order."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any, Final, NamedTuple

from ....exceptions import EngineUnavailable
from ... import usage
from ...base import Verdict, Version, mark_refunded
from ...call import NO_CHARGES, Answer, Call
from ..connections.faults import may_have_been_run
from ..protocol import CallEncoder, ScriptMode

#: Default number of shards in a cluster.
SHARDS: Final = 64

#: Seconds for refunds after the deadline, which a node that did not answer has used up.
UNDO_SECONDS: Final = 0.005


class ShardCall(NamedTuple):
    """One call to one shard. Fields [1:7], from mode to counts, are the arguments of the engines' `_call`."""

    shard: int
    mode: int
    call: Call = NO_CHARGES
    receipts: Sequence[Verdict] = ()
    version: int | Version | None = None
    now_us: int | None = None
    counts: usage.UsageCarry | None = None
    #: The call itself, if it is packed already.
    packed: bytes | None = None

    def deadline_at(self, deadline: float | None) -> float | None:
        """Return the deadline of this call in monotonic seconds. deadline: seconds for all calls."""
        gives_back = self.mode in (ScriptMode.REFUND, ScriptMode.UNDO)
        return max(deadline, monotonic() + UNDO_SECONDS) if deadline is not None and gives_back else deadline


@dataclass(slots=True)
class ShardPart:
    """The part of a call in one shard. places: of its charges in the call."""

    call: Call = NO_CHARGES
    places: list[int] = field(default_factory=list)
    receipts: list[Verdict] = field(default_factory=list)


class ShardCoordinator:
    """Spreads calls over the shards of an encoder. is_down: returns whether calls to a shard are stopped at present.

    make_call: makes a call to one shard, until this time in monotonic seconds; a packed one returns no verdicts.
    finish: runs work to its end, even if the waiting task is cancelled.
    """

    def __init__(
        self,
        encoder: CallEncoder,
        is_down: Callable[[int], bool],
        make_call: Callable[[ShardCall, float | None], Awaitable[Answer]],
        finish: Callable[[Coroutine[Any, Any, None]], Awaitable[None]],
    ) -> None:
        self._encoder = encoder
        self._is_down = is_down
        self._make_call, self._finish = make_call, finish
        self._next_shard = count()

    async def check(self, call: ShardCall, deadline_at: float | None) -> Answer:
        """Decide all or nothing: if one shard rejects the call, later ones reject it too, and earlier ones refund it.

        call: over all shards.
        """
        counts, parts = call.counts, self._parts(call.call, call.receipts)
        asked = self._order(parts)
        carrier = asked[0] if counts is None or counts.shard is None else counts.shard
        found: dict[int, Answer] = {}
        allowing: list[int] = []  # the shards that allowed their part, before any other shard rejected the call
        mode, so_far, noted = call.mode, call.call.so_far, call.call.noted
        for shard in asked:
            part = parts.setdefault(shard, ShardPart())
            carried = counts if shard == carrier else None
            part.call = part.call.continuing(so_far, noted)
            part.call.settled = call.call.settled if shard == asked[0] else None
            one = ShardCall(shard, mode, part.call, part.receipts, call.version, call.now_us, carried)
            try:
                found[shard] = answer = await self._send_with_counts(one, deadline_at)
            except (Exception, CancelledError) as error:
                if found:
                    is_lost = isinstance(error, CancelledError) or may_have_been_run(error)
                    await self._finish(self._undo(found, deadline_at, is_lost=is_lost))
                raise
            if len(asked) > 1:
                so_far = usage.continued(so_far, answer, is_rejected=answer.is_rejected)
            if answer.is_rejected:
                mode, noted = ScriptMode.REJECTED, ()
                mark_refunded(part.receipts)
            else:
                allowing.append(shard)
        if mode == ScriptMode.REJECTED:
            await self._finish(self._roll_back_allowed(parts, found, allowing, deadline_at))
        if counts:
            await self._settle_counts(counts, carrier, asked, deadline_at)
        if len(asked) == 1:
            return answer
        joined = Answer.joined(call.call, [(parts[shard].places, answer) for shard, answer in found.items()])
        if mode == ScriptMode.REJECTED:
            joined.reject()
        return joined

    def _order(self, parts: dict[int, ShardPart]) -> list[int]:
        """Return the shards to ask, first those out of reach, so that this is known before anything is charged."""
        asked = [shard for shard in sorted(parts) if parts[shard].places or parts[shard].call.returned]
        if not asked:
            return [next(self._next_shard) % self._encoder.shards]
        return sorted(asked, key=self._is_down, reverse=True) if len(asked) > 1 else asked

    async def _settle_counts(
        self, counts: usage.UsageCarry, carrier: int, asked: Sequence[int], deadline_at: float | None
    ) -> None:
        """Record that counts have arrived, or send them if no other call went to their shard."""
        if carrier in asked:
            counts.shard = None  # only after all replies: after a failure the counts are sent again
            return
        with suppress(EngineUnavailable):  # nothing else waits for that shard
            await self._send_with_counts(ShardCall(carrier, ScriptMode.CHECK, counts=counts), deadline_at)
            counts.shard = None

    async def peek(self, call: Call, now_us: int | None, deadline_at: float | None) -> list[Verdict]:
        """Return the verdicts that `check` would give."""
        verdicts: dict[int, Verdict] = {}
        for shard, part in sorted(self._parts(call, ()).items()):
            answer = await self._make_call(ShardCall(shard, ScriptMode.PEEK, part.call, now_us=now_us), deadline_at)
            verdicts |= zip(part.places, answer.peeked(), strict=True)
        return [verdicts[place] for place in range(len(call))]

    async def refund(self, receipts: Sequence[Verdict], minute: int | None) -> None:
        """Refund in every shard that can be reached; raises EngineUnavailable if one could not.

        minute: in which usage counts their units; `None` = it does not.
        """
        if receipts:
            await self._finish(self._refund_each(self._parts(NO_CHARGES, receipts), minute))

    async def _refund_each(self, parts: dict[int, ShardPart], minute: int | None) -> None:
        problem: BaseException | None = None
        for shard in sorted(parts):
            receipts = parts[shard].receipts
            counts = None if minute is None else usage.carried(receipts, minute)
            try:
                await self._make_call(ShardCall(shard, ScriptMode.REFUND, receipts=receipts, counts=counts), None)
            except (EngineUnavailable, CancelledError) as error:
                problem = error
            else:
                mark_refunded(parts[shard].receipts)
        if problem:
            raise problem

    def _parts(self, call: Call, receipts: Iterable[Verdict]) -> dict[int, ShardPart]:
        parts: dict[int, ShardPart] = {}
        returned: dict[int, list[Verdict]] = {}
        for place, charge in enumerate(call):
            parts.setdefault(self._encoder.shard_of(charge), ShardPart()).places.append(place)
        for receipt in call.returned:
            returned.setdefault(self._encoder.shard_of(receipt.charge), []).append(receipt)
        for shard in returned:
            parts.setdefault(shard, ShardPart())
        for shard, part in parts.items():
            part.call = call if len(parts) == 1 else call.part(part.places, returned.get(shard, ()))
        for receipt in receipts:
            parts.setdefault(self._encoder.shard_of(receipt.charge), ShardPart()).receipts.append(receipt)
        return parts

    async def _undo(self, found: Mapping[int, Answer], deadline_at: float | None, *, is_lost: bool) -> None:
        """Undo the charges and counts of these shards. If a shard is out of reach, its charges stay.

        is_lost: the shard that failed may have corrected the counts. They stay, so that none is taken back twice.
        """
        for shard, verdicts in found.items():
            if verdicts:
                verdicts.spend_taken()
                receipts = [verdict for verdict in verdicts if verdict.spent]
                call = ShardCall(shard, ScriptMode.REFUND, receipts=receipts)
                if not is_lost:
                    packed = self._encoder.encode_undo(verdicts, shard=shard)
                    call = ShardCall(shard, ScriptMode.UNDO, packed=packed)
                with suppress(EngineUnavailable, CancelledError):
                    await self._make_call(call, deadline_at)

    async def _roll_back_allowed(
        self,
        parts: Mapping[int, ShardPart],
        found: Mapping[int, Answer],
        allowing: Sequence[int],
        deadline_at: float | None,
    ) -> None:
        """Refund a call that was rejected after some shards allowed it, and make the refunds that it carried.

        If a shard is out of reach, its charges stay. The shard that rejected it has corrected what they have counted.
        """
        for shard, part in sorted(parts.items()):
            if shard in found and shard not in allowing:
                continue
            verdicts: Sequence[Verdict] = found.get(shard, ())
            if shard in found:
                found[shard].spend_taken()
            for verdict in verdicts:
                verdict.soft_exceeded = False
            if receipts := [*(verdict for verdict in verdicts if verdict.spent), *part.receipts]:
                with suppress(EngineUnavailable, CancelledError):
                    await self._make_call(ShardCall(shard, ScriptMode.REFUND, receipts=receipts), deadline_at)
                    mark_refunded(receipts)

    async def _send_with_counts(self, call: ShardCall, deadline_at: float | None) -> Answer:
        """Make a call that may carry counts, and record their shard in them, unless they cannot have arrived there."""
        counts = call.counts
        if counts is None:
            return await self._make_call(call, deadline_at)
        was_sent, counts.shard = counts.shard is not None, call.shard
        try:
            return await self._make_call(call, deadline_at)
        except Exception as error:
            if not (was_sent or may_have_been_run(error)):
                counts.shard = None
            raise
