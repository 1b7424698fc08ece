"""RedisEngine for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster

from ...exceptions import EngineUnavailable, StaleRules
from .. import usage
from ..base import Charge, Verdict, Version, leases
from ..coroutines import shielded
from ..templates import FilledCharges, FilledVerdicts
from .cluster.nodes import AsyncClusterTransport, async_cluster_transport
from .cluster.sharding import SHARDS, Calls, ShardCall, ShardCoordinator, names_by_shard
from .connections.async_transport import AsyncTransport
from .connections.faults import NOT_A_REPLY
from .connections.handshake import Handshake
from .protocol import (
    ATTEMPTS,
    COUNTING,
    OUT_OF_TIME,
    CallEncoder,
    ScriptMode,
    decode,
    deletion,
    mark_refunded,
    mark_refunded_if_denied,
    receipts_of,
)

T = TypeVar("T")


class AsyncRedisEngine(CallEncoder):
    """RedisEngine for event loops: the same plans and verdicts, and each method to be awaited.

    client: of redis.asyncio, or a cluster's of either kind; the engine's own connections are made as its pool makes
    them. max_connections: calls at work at once on one event loop, with one server; more wait for their turn.
    deadline, clock: as for RedisEngine; without one, the client's `socket_timeout` stands in for it.
    """

    def __init__(
        self,
        client: AsyncRedis | AsyncRedisCluster | RedisCluster,
        namespace: str = "rl",
        *,
        shards: int = SHARDS,
        deadline: float | None = None,
        max_connections: int = 64,
        clock: str = "server",
    ) -> None:
        super().__init__(namespace, 1 if isinstance(client, AsyncRedis) else shards, clock)
        self._deadline = deadline
        self._cluster: AsyncClusterTransport | None = None
        if isinstance(client, AsyncRedis):
            self._transport = AsyncTransport(client, Handshake(self), max_connections, deadline)
        else:
            self._cluster = async_cluster_transport(client, self, max_connections, deadline)
            self._coordinator = ShardCoordinator(self, self._cluster.is_down)

    async def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        refused: bool = False,
        counts: usage.UsageCarry | None = None,
    ) -> Sequence[Verdict]:
        """Decide and spend, all or nothing. Raises StaleRules if `version` is not the one in force.

        refused: the call is refused already: it is dealt with as if one more charge had refused it.
        counts: usage that this process has held; it is added once, however often it comes under the same id.
        """
        if type(charges) is FilledCharges:
            if not (refund_if_denied or refused or counts) and now_us is None:
                call = self.encode_filled(charges, version)
                if call is not None:
                    return await self._check_filled(charges, version, call)
        elif type(charges) is not tuple:
            charges = list(charges)
        receipts = receipts_of(refund_if_denied)
        if self._cluster:
            calls = self._coordinator.check(charges, receipts, version, now_us, refused, counts)
            return await self._go(calls, together=True)
        mode = ScriptMode.REFUSED if refused else ScriptMode.CHECK
        verdicts = await self._call(mode, charges, receipts, version, now_us, counts)
        mark_refunded_if_denied(receipts, verdicts, refused=refused)
        return verdicts

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now; spends and counts nothing."""
        charges = list(charges)
        if self._cluster:
            return await self._go(self._coordinator.peek(charges, now_us), together=True)
        return await self._call(ScriptMode.PEEK, charges, (), None, now_us)

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent. A verdict is refunded once; what is past is let go."""
        receipts = receipts_of(verdicts)
        if self._cluster:
            await self._go(self._coordinator.refund(receipts))
        elif receipts:
            await self._call(ScriptMode.REFUND, (), receipts, None, None)
            mark_refunded(receipts)

    async def release(self, verdicts: Iterable[Verdict]) -> None:
        """End the leases of these verdicts; those of other algorithms are left alone."""
        await self.refund(leases(verdicts))

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys: their next request finds the full quota."""
        for shard, names in names_by_shard(self, charges).items():
            await self._ask(shard, deletion(names), kind=int)  # the client's own connections know one event loop only

    async def publish(self, version: int | Version) -> None:
        """Put a version in force, unless a later one is."""
        if self._cluster:
            return await self._cluster.publish(self, version)
        with suppress(StaleRules):  # a later version is in force already
            await self._call(ScriptMode.PUBLISH, (), (), version, None)

    async def aclose(self) -> None:
        """Close this event loop's idle connections; the client is its owner's to close."""
        await (self._cluster or self._transport).aclose()

    async def _call(
        self,
        mode: ScriptMode,
        charges: Sequence[Charge],
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        counts: usage.UsageCarry | None = None,
        shard: int = 0,
        deadline_at: float | None = None,
    ) -> list[Verdict]:
        """One call of check.lua for these charges and receipts, which lie in one shard."""
        if now_us is None:
            now_us = self.time_to_send()
        times: Sequence[int] = (self.estimate_time(now_us),)
        began = monotonic()
        notes = self._partition_tracker.of(charges, times[0]) if mode in COUNTING else ()
        for _ in range(ATTEMPTS):
            call = self.encode(mode, charges, receipts, version, now_us, times, shard=shard, counts=counts, notes=notes)
            reply: list[int] = await self._ask(shard, call, deadline_at)
            try:
                if reply[0] >= 0:
                    verdicts = decode(
                        reply, charges, spending=mode is not ScriptMode.PEEK, refused=mode is ScriptMode.REFUSED
                    )
                    if notes:
                        self._partition_tracker.acknowledge(notes, reply[0])
                    return verdicts
                times = self.decode_retry(reply, now_us)
            except NOT_A_REPLY as error:
                self._drop_idle(shard)
                raise EngineUnavailable(f"A reply that no Redis sends: {reply!r:.100}") from error
            deadline_at = deadline_at or (self._deadline and began + self._deadline)
        raise EngineUnavailable(OUT_OF_TIME)

    async def _check_filled(
        self, charges: FilledCharges, version: int | Version | None, call: bytes
    ) -> Sequence[Verdict]:
        """Check charges whose call has been packed, on one server."""
        began = monotonic()
        reply: list[int] = await self._transport.call(call)
        try:
            if reply[0] >= 0:
                return FilledVerdicts(charges, reply)
            self.decode_retry(reply, None)
        except NOT_A_REPLY as error:
            self._transport.drop_idle()
            raise EngineUnavailable(f"A reply that no Redis sends: {reply!r:.100}") from error
        deadline_at = self._deadline and began + self._deadline
        return await self._call(ScriptMode.CHECK, charges, (), version, None, deadline_at=deadline_at)

    def _drop_idle(self, shard: int) -> None:
        if self._cluster:
            self._cluster.drop_idle(shard)
        else:
            self._transport.drop_idle()

    async def _go(
        self,
        calls: Calls[T],
        *,
        together: bool = False,
        deadline_at: float | None = None,
        cancelled: asyncio.CancelledError | None = None,
    ) -> T:
        """Make these calls. together: within one deadline. cancelled: what the one that was being made has met with.

        If our task is cancelled, what then is to be taken back is so before that goes on.
        """
        if together and self._deadline is not None:
            deadline_at = monotonic() + self._deadline
        turn: Any = calls.throw if cancelled else calls.send
        given: Any = cancelled
        while True:
            try:
                call = turn(given)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                turn, given = calls.send, await self._make(call, deadline_at)
            except asyncio.CancelledError as error:
                with suppress(Exception):  # whatever comes of that, it is cancelled
                    await shielded(self._go(calls, deadline_at=deadline_at, cancelled=error))
                raise
            except Exception as error:
                turn, given = calls.throw, error

    async def _make(self, call: ShardCall, deadline_at: float | None) -> Any:
        if call.packed is None:
            return await self._call(*call[1:7], call.shard, call.deadline_at(deadline_at))
        return await self._ask(call.shard, call.packed, call.deadline_at(deadline_at))

    async def _ask(self, shard: int, call: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        return await (
            self._cluster.call(shard, call, deadline_at, kind)
            if self._cluster
            else self._transport.call(call, deadline_at, kind)
        )
