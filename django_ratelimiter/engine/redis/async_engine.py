"""RedisEngine for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster

from .. import usage
from ..base import Charge, Verdict, Version, leases
from ..call import Call
from ..coroutines import shielded
from .cluster.nodes import AsyncClusterTransport, ClusterTransport, cluster_transport
from .cluster.sharding import SHARDS
from .connections.async_transport import AsyncTransport
from .connections.server import Handshake, Server
from .connections.transport import Transport
from .core import RedisCore

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
        reject: bool = False,
        counts: usage.UsageCarry | None = None,
    ) -> Sequence[Verdict]:
        """Decide and charge, all or nothing; see RedisEngine."""
        if type(charges) is not Call:
            call = Call.of(charges)
            return (await self._decide(call, refund_if_denied, version, now_us, reject, counts)).listed()
        special = now_us is not None or refund_if_denied or reject or counts or charges.returned
        if special or (packed := self.encode_filled(charges, version)) is None:
            return await self._decide(charges, refund_if_denied, version, now_us, reject, counts)
        began, reply = monotonic(), await self._transport.call(packed)
        if (answer := self._read(charges, reply)) is not None:
            return answer
        return await self._check_again(charges, version, began)

    peek, refund, reset = RedisCore._peek, RedisCore._refund, RedisCore._reset

    async def release(self, verdicts: Iterable[Verdict]) -> None:
        """Release the leases of these verdicts; verdicts of other algorithms are ignored."""
        await self._refund(leases(verdicts), is_counted=False)

    async def publish(self, version: int | Version) -> None:
        """Make a version current, unless a later one is."""
        if self._cluster:
            return await asyncio.to_thread(self._cluster.threads.publish, self, version)  # rare, so a thread does it
        await self._publish(version)

    async def aclose(self) -> None:
        """Close this event loop's idle connections. The client itself stays open."""
        await (self._cluster or self._transport).aclose()

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
