"""The common part of RedisEngine and AsyncRedisEngine, as coroutines, which never suspend in threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from ...exceptions import EngineUnavailable, StaleRules
from .. import usage
from ..base import Charge, Verdict, Version, mark_refunded, receipts_of
from ..call import NO_CHARGES, Answer, Call
from ..partition_stats import MINUTE_US
from .cluster.sharding import ShardCall, ShardCoordinator
from .connections.faults import NOT_A_REPLY
from .connections.server import Server
from .packing import command
from .protocol import ATTEMPTS, COUNTING, OUT_OF_TIME, CallEncoder, ScriptMode


class RedisCore(CallEncoder, ABC):
    """Decides by calls of check.lua, which a subclass sends.

    deadline: maximum seconds that a decision waits for Redis; `None` = the timeouts of the client apply.
    """

    def __init__(self, namespace: str, shards: int, clock: str, deadline: float | None) -> None:
        super().__init__(namespace, shards, clock)
        self._deadline = deadline
        #: Splits calls if there are several shards.
        self._coordinator: ShardCoordinator | None = None

    @abstractmethod
    async def _send(self, shard: int, call: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        """Send one packed call to the server of a shard, and return its reply. kind: of the reply."""

    @abstractmethod
    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Await this work. It runs to its end even if the waiting task is cancelled."""

    @abstractmethod
    def server_of(self, shard: int) -> Server:
        """Return what this process knows about the server of a shard."""

    def reconnect(self) -> None:
        """Close all connections before their next use: some lead to another server than others."""
        for shard in range(self.shards):
            with suppress(EngineUnavailable):
                self.server_of(shard).renew()

    def _coordinate(self, is_down: Callable[[int], bool]) -> None:
        """Split calls by shard. is_down: returns whether the server of a shard is not called at present."""
        self._coordinator = ShardCoordinator(self, is_down, self._make, self._finish)

    def _deadline_from_now(self) -> float | None:
        return None if self._deadline is None else monotonic() + self._deadline

    def _read(self, call: Call, reply: list[int]) -> Answer | None:
        """Return the answer in the reply to a filled call; `None` = it must be repeated by `_check_again`."""
        try:
            if reply[0] >= 0:
                answer = Answer(call, reply)
                if answer.is_rejected:
                    self._partition_tracker.note_rejected(answer)
                return answer
            self.decode_retry(reply, None)
            return None
        except NOT_A_REPLY as error:
            raise self._no_reply(reply) from error

    async def _check_again(self, call: Call, version: int | Version | None, began: float) -> Answer:
        """Repeat a filled call. began: monotonic seconds, when it was sent."""
        deadline_at = self._deadline and began + self._deadline
        return await self._call(ScriptMode.CHECK, call, (), version, None, deadline_at=deadline_at)

    async def _decide(
        self,
        call: Call,
        refund_if_denied: Iterable[Verdict],
        version: int | Version | None,
        now_us: int | None,
        reject: bool,
        counts: usage.UsageCarry | None,
    ) -> Answer:
        """Check a call of any kind."""
        receipts = receipts_of(refund_if_denied)
        mode = ScriptMode.REJECTED if reject else ScriptMode.CHECK
        if self._coordinator:
            shard_call = ShardCall(0, mode, call, receipts, version, now_us, counts)
            return await self._coordinator.check(shard_call, self._deadline_from_now())
        answer = await self._call(mode, call, receipts, version, now_us, counts)
        if answer.is_rejected:
            mark_refunded(receipts)
        return answer

    async def _peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now. Nothing is charged or counted."""
        call = Call.of(charges)
        if self._coordinator:
            return await self._coordinator.peek(call, now_us, self._deadline_from_now())
        return (await self._call(ScriptMode.PEEK, call, (), None, now_us)).peeked()

    async def _refund(self, verdicts: Iterable[Verdict], *, is_counted: bool = True) -> None:
        """Refund these verdicts, once each. Units that no longer count are ignored. is_counted: in usage."""
        receipts, minute = receipts_of(verdicts), self.estimate_time(self.time_to_send()) // MINUTE_US
        if self._coordinator:
            await self._coordinator.refund(receipts, minute if is_counted else None)
        elif receipts:
            counts = usage.carried(receipts, minute) if is_counted else None
            await self._call(ScriptMode.REFUND, NO_CHARGES, receipts, None, None, counts)
            mark_refunded(receipts)

    async def _reset(self, charges: Iterable[Charge]) -> None:
        """Delete the counters of these charges: their next request has the full quota."""
        by_shard: dict[int, list[bytes]] = {}
        for charge in charges:
            by_shard.setdefault(self.shard_of(charge), []).append(self._name(charge))
        for shard, names in by_shard.items():
            await self._send(shard, command("DEL", *names), kind=int)

    async def _publish(self, version: int | Version) -> None:
        """Make a version current on the only server."""
        with suppress(StaleRules):  # a later version is current already
            await self._call(ScriptMode.PUBLISH, NO_CHARGES, (), version, None)

    async def _call(
        self,
        mode: int,
        call: Call,
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        counts: usage.UsageCarry | None = None,
        shard: int = 0,
        deadline_at: float | None = None,
    ) -> Answer:
        """Send one call of check.lua, again if Redis has another time, and return the answer. All in one shard."""
        now_us = self.time_to_send() if now_us is None else now_us
        times: Sequence[int] = (self.estimate_time(now_us),)
        began = monotonic()
        notes = self._partition_tracker.of(call, times[0], shard) if mode in COUNTING else ()
        for _ in range(ATTEMPTS):
            packed = self.encode(mode, call, receipts, version, now_us, times, shard=shard, counts=counts, notes=notes)
            reply: list[int] = await self._send(shard, packed, deadline_at)
            try:
                if reply[0] >= 0:
                    answer = Answer(call, reply)
                    mark_refunded(call.returned)
                    if answer.is_rejected and mode in COUNTING:
                        self._partition_tracker.note_rejected(answer, shard)
                    if mode == ScriptMode.REJECTED:
                        answer.reject()
                    return answer
                times = self.decode_retry(reply, now_us)
                mark_refunded(call.returned)
            except NOT_A_REPLY as error:
                raise self._no_reply(reply, shard) from error
            deadline_at = deadline_at or (self._deadline and began + self._deadline)
        raise EngineUnavailable(OUT_OF_TIME)

    def _no_reply(self, reply: object, shard: int = 0) -> EngineUnavailable:
        """Return the exception for a reply that is not from the script, and close the connections of its server."""
        self.server_of(shard).renew()
        return EngineUnavailable(f"A reply that no Redis sends: {reply!r:.100}")

    async def _make(self, call: ShardCall, deadline_at: float | None) -> Answer:
        """Send the call of one shard, and return its answer; that to a packed call is empty."""
        deadline_at = call.deadline_at(deadline_at)
        if call.packed is None:
            return await self._call(*call[1:7], call.shard, deadline_at)  # from mode to counts
        await self._send(call.shard, call.packed, deadline_at)
        return Answer(NO_CHARGES, (0,))
