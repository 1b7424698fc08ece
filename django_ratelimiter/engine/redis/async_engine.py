"""RedisEngine for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster

from .. import usage
from ..base import Charge, Verdict, Version, leases
from ..coroutines import shielded
from ..templates import FilledCarry, FilledCharges, FilledVerdicts
from ..usage.refusals import Refusal, latest
from .cluster.nodes import AsyncClusterTransport, ClusterTransport, cluster_transport
from .cluster.sharding import SHARDS, names_by_shard
from .connections.async_transport import AsyncTransport
from .connections.faults import NOT_A_REPLY
from .connections.handshake import Handshake
from .connections.server import Server
from .connections.transport import Transport
from .core import RedisCore
from .packing import RECENT, command
from .protocol import ScriptMode, decode_check
from .refusals import remembered_in

T = TypeVar("T")


class AsyncRedisEngine(RedisCore):
    """RedisEngine for event loops: it sends the same calls and returns the same verdicts. Each method must be awaited.

    client: of redis.asyncio, or a cluster client of either kind; the engine makes its own connections in the same way
    as its pool. max_connections: the maximum number of calls at once to one server on one event loop; others wait.
    deadline, clock: as for RedisEngine; without a deadline, the client's `socket_timeout` is used.
    threads: the transport of a RedisEngine for the same servers; `None` = each event loop connects at its first call.
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
        threads: Transport | ClusterTransport | None = None,
    ) -> None:
        super().__init__(namespace, 1 if isinstance(client, AsyncRedis) else shards, clock, deadline)
        self._cluster: AsyncClusterTransport | None = None
        if isinstance(client, AsyncRedis):
            assert not isinstance(threads, ClusterTransport)
            server = threads.server if threads else Server(Handshake(self))
            self._transport = AsyncTransport(client, server, max_connections, deadline, threads)
        else:
            if not isinstance(threads, ClusterTransport):
                threads = cluster_transport(client, self, deadline)
            self._cluster = AsyncClusterTransport(threads, max_connections)
            self._coordinate(threads.is_down)

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
        """Decide and charge, all or nothing. Raises StaleRules if `version` is older than the current one.

        refused: the call is rejected already: its charges are handled as if one more charge had rejected it.
        counts: usage that this process has kept; it is added once, even if the same id is sent several times.
        """
        if now_us is not None or refund_if_denied or refused or counts:
            asked = charges if type(charges) is FilledCharges else list(charges)
            return await self._decide(asked, refund_if_denied, version, now_us, refused, counts)
        if type(charges) is not FilledCharges or (call := self.encode_filled(charges, version)) is None:
            return await self._check_otherwise(charges, version)
        # As in `_check_packed`, without calling it: nearly every call comes here.
        began, reply = monotonic(), await self._transport.call(call)
        try:
            if reply[0] >= 0:
                return FilledVerdicts(charges, reply)
        except NOT_A_REPLY as error:
            raise self._no_reply(reply) from error
        return await self._check_again(charges, version, reply, began)

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now. Nothing is charged or counted."""
        return await self._peek(list(charges), now_us)

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each. Units that no longer count are ignored."""
        await self._refund(verdicts)

    async def release(self, verdicts: Iterable[Verdict]) -> None:
        """Release the leases of these verdicts; verdicts of other algorithms are ignored."""
        await self.refund(leases(verdicts))

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Delete the counters of these charges: their next request has the full quota."""
        for shard, names in names_by_shard(self, charges).items():
            await self._send(
                shard, command("DEL", *names), kind=int
            )  # the client's own connections belong to one event loop

    async def recent_refusals(self, limit: int = 100, rule: str | None = None) -> list[Refusal]:
        """Return the recent rejections, the latest first, at most `limit`. rule: only those by this rule."""
        calls = [command("HGETALL", f"{self._prefix(shard)}{RECENT}") for shard in range(self.shards)]
        found = [remembered_in(await self._send(shard, call)) for shard, call in enumerate(calls)]
        return latest(found, self.estimate_time(self.time_to_send()), limit, rule)

    async def publish(self, version: int | Version) -> None:
        """Make a version current, unless a later one is."""
        if self._cluster:
            return await self._cluster.publish(self, version)
        await self._publish(version)

    async def aclose(self) -> None:
        """Close this event loop's idle connections. The client itself stays open."""
        await (self._cluster or self._transport).aclose()

    async def _check_otherwise(self, charges: Iterable[Charge], version: int | Version | None) -> Sequence[Verdict]:
        """Check charges and nothing else, where `encode_filled` packs no call."""
        if type(charges) is FilledCharges:
            asked: Sequence[Charge] = charges
            if (first := self._encode_new(charges, version)) is not None:
                verdicts = await self._check_packed(charges, version, first[0])
                if type(verdicts) is FilledVerdicts:
                    self._partition_tracker.acknowledge_new(charges, first[1], verdicts.states.at_us)
                return verdicts
        elif type(charges) is FilledCarry and (call := self._encode_carrying(charges, version)) is not None:
            return await self._check_packed(charges.filled, version, call, carrying=charges)
        else:
            asked = charges = list(charges)
            if (plain := self.encode_plain(charges, version)) is not None:
                verdicts = await self._check_packed(charges, version, plain[0], decode_check)
                if plain[1]:
                    self._partition_tracker.acknowledge(plain[1], verdicts[0].at_us, charges)
                return verdicts
        return await self._decide(asked, (), version, None, False, None)

    async def _check_packed(
        self,
        charges: Any,
        version: int | Version | None,
        call: bytes,
        read: Callable[[Any, list[int]], Sequence[Verdict]] = FilledVerdicts,
        carrying: FilledCarry | None = None,
    ) -> Sequence[Verdict]:
        """Send a packed check to the only server. read: makes verdicts from the charges and the reply.

        carrying: the same filled charges, if they carry something.
        """
        began = monotonic()
        reply: list[int] = await self._transport.call(call)
        try:
            if reply[0] >= 0:
                return read(charges, reply)
        except NOT_A_REPLY as error:
            raise self._no_reply(reply) from error
        return await self._check_again(charges if carrying is None else list(carrying), version, reply, began)

    async def _check_again(
        self, charges: Sequence[Charge], version: int | Version | None, reply: list[int], began: float
    ) -> Sequence[Verdict]:
        """Check charges after a reply that gives no result. began: monotonic seconds, when that call was sent."""
        try:
            self.decode_retry(reply, None)
        except NOT_A_REPLY as error:
            raise self._no_reply(reply) from error
        deadline_at = self._deadline and began + self._deadline
        return await self._call(ScriptMode.CHECK, charges, (), version, None, deadline_at=deadline_at)

    def server_of(self, shard: int) -> Server:
        return self._cluster.threads.server_of(shard) if self._cluster else self._transport.server

    async def _send(self, shard: int, call: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        if self._cluster:
            return await self._cluster.call(shard, call, deadline_at, kind)
        return await self._transport.call(call, deadline_at, kind)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        try:
            await shielded(task)
        except asyncio.CancelledError:
            with suppress(Exception):  # the cancellation continues after the call has ended
                await asyncio.shield(task)
            raise
