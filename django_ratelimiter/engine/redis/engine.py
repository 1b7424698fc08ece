"""RedisEngine: the charges of a call packed into one script call, its reply read into verdicts.

Decisions use their own connections and packed commands: the client itself takes longer than the script
(benchmarks/), and repeats a command whose reply was lost, which would count twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar
from zlib import crc32

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from ...exceptions import EngineUnavailable
from ...logs import logger
from .. import usage
from ..base import Charge, UsageCount, Verdict, Version, leases
from ..call import Call
from ..coroutines import run_sync
from ..usage.rejections import Rejection, RejectionCounts, latest
from .async_engine import AsyncRedisEngine
from .closing import close_minutes, remembered_in
from .cluster.nodes import ClusterTransport, cluster_transport
from .cluster.sharding import SHARDS
from .commands import ShardCommands, fields_of
from .connections.clients import async_client_of
from .connections.faults import explain
from .connections.server import Handshake, Server
from .connections.transport import Transport
from .core import RedisCore
from .packing import RECENT, text_of
from .partition_stats import RedisPartitions

T = TypeVar("T")

#: Exceptions of a client whose server is out of reach.
CLIENT_ERRORS: Final = (RedisError, RedisClusterException, OSError)

#: Fields of a batch that are read at once.
MAX_SCANNED: Final = 2_000

#: A proxy that is not trusted is in one of this number of keys, for so many seconds.
MAX_PROXIES, PROXY_SECONDS = 16, 7_200


class RedisEngine(RedisCore):
    """The engine on one Redis, on the master that Sentinel names, or on a cluster.

    client: a redis-py client; the engine makes its own connections in the same way as the client's pool.
    namespace: the prefix of all keys. shards: the number of shards of a cluster; without a cluster there is one.
    deadline: the maximum seconds that a decision waits for Redis; a server that keeps failing is then not asked until
    it answers again. `None` = the timeouts of the client apply, and each call tries again.
    clock: "server" = the time of Redis; "client" = that of this process, for servers that do not allow TIME in scripts.
    Every method raises EngineUnavailable if Redis does not answer. ValueError for a client that asks replicas.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        namespace: str = "rl",
        *,
        shards: int = SHARDS,
        deadline: float | None = None,
        clock: str = "server",
    ) -> None:
        super().__init__(namespace, shards if isinstance(client, RedisCluster) else 1, clock, deadline)
        self._client = client
        self._cluster: ClusterTransport | None = None
        if isinstance(client, RedisCluster):
            self._cluster = cluster_transport(client, self, deadline)
            self._coordinate(self._cluster.is_down)
            #: Sends commands that are not decisions.
            self.commands: ShardCommands = ShardCommands(self, self._run, node_of=self._cluster.node_of)
        elif not getattr(client.connection_pool, "is_master", True):
            raise ValueError("client: this client asks the replicas of Sentinel, but only the master can count.")
        else:
            self._transport = Transport(client, Server(Handshake(self)), deadline)
            self.commands = ShardCommands(self, self._run, self._transport.pipeline)
        #: Statistics of the partitions.
        self.partitions: RedisPartitions = RedisPartitions(self.commands)

    def to_async(self) -> AsyncRedisEngine | None:
        """Return the same engine for event loops; `None` if there is no asynchronous counterpart of its client."""
        client = self._client
        twin = async_client_of(client) if isinstance(client, Redis) else client
        if twin is None or (self._cluster and self._cluster.client_factory.only_in_threads):
            return None
        return AsyncRedisEngine(
            twin,
            self.namespace,
            shards=self.shards,
            deadline=self._deadline,
            clock=self.clock,
            threads=self._cluster or self._transport,
        )

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        reject: bool = False,
        counts: usage.UsageCarry | None = None,
    ) -> Sequence[Verdict]:
        """Decide and charge, all or nothing. Raises StaleRules if `version` is older than the current one.

        reject: the call is rejected already: its charges are handled as if one more charge had rejected it.
        counts: usage that this process has kept; it is added once, even if the same id is sent several times.
        """
        if type(charges) is not Call:
            call = Call.of(charges)
            return run_sync(self._decide(call, refund_if_denied, version, now_us, reject, counts)).listed()
        special = now_us is not None or refund_if_denied or reject or counts or charges.returned
        if special or (packed := self.encode_filled(charges, version)) is None:
            return run_sync(self._decide(charges, refund_if_denied, version, now_us, reject, counts))
        began, reply = monotonic(), self._transport.call(packed)
        if (answer := self._read(charges, reply)) is not None:
            return answer
        return run_sync(self._check_again(charges, version, began))

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """Return the verdicts that `check` would give now. Nothing is charged or counted."""
        return run_sync(self._peek(charges, now_us))

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund these verdicts, once each. Units that no longer count are ignored."""
        run_sync(self._refund(verdicts))

    def release(self, verdicts: Iterable[Verdict]) -> None:
        """Release the leases of these verdicts; verdicts of other algorithms are ignored."""
        run_sync(self._refund(leases(verdicts), is_counted=False))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Delete the counters of these charges: their next request has the full quota."""
        run_sync(self._reset(charges))

    def publish(self, version: int | Version) -> None:
        """Make a version current, unless a later one is."""
        if self._cluster:
            return self._cluster.publish(self, version)
        run_sync(self._publish(version))

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed, and return the names of all batches that wait, the oldest first.

        Shards that are out of reach are left out; raises EngineUnavailable if no shard can be reached.
        """
        if now_us is None:
            now_us = self.time_to_send()
        batches: list[str] = []
        problem, missed = None, 0
        for shards in self.commands.nodes():
            for number, shard in enumerate(shards):
                closing = partial(close_minutes, prefix=self.prefix(shard), shard=shard, now_us=now_us)
                try:
                    batches += self._run(shard, closing)
                except EngineUnavailable as error:
                    problem, missed = error, missed + len(shards) - number
                    break  # the other shards of this node
        if problem and missed == self.shards:
            raise problem
        if problem:
            logger.warning("The usage in %d of %d shards cannot be collected now: %s", missed, self.shards, problem)
        return usage.in_order(batches)

    def read_usage(self, batch: str) -> list[UsageCount]:
        """Return the counts of one batch; empty if it was dropped or has expired."""
        return usage.counts_of(usage.minute_of(batch), self._fields_of(batch))

    def read_requests(self, batch: str) -> list[UsageCount]:
        """Return the counts of the requests of one batch, each once, whatever rules matched it."""
        return usage.requests_of(usage.minute_of(batch), self._fields_of(batch))

    def _fields_of(self, batch: str) -> dict[str, int]:
        shard = usage.shard_of(batch)
        key = f"{self.prefix(shard)}batch:{batch}"  # nobody adds to it; in parts, as a large one would block Redis
        fields = fields_of(self._run(shard, lambda client: dict(client.hscan_iter(key, count=MAX_SCANNED))))
        fields.pop(usage.FILLER, None)
        return {field: int(count) for field, count in fields.items()}

    def drop_usage(self, batch: str) -> None:
        """Delete a batch that has been collected."""
        shard = usage.shard_of(batch)

        def drop(client: Redis) -> None:
            with client.pipeline(transaction=True) as pipeline:
                pipeline.unlink(f"{self.prefix(shard)}batch:{batch}")
                pipeline.srem(f"{self.prefix(shard)}batches", batch)
                pipeline.hdel(f"{self.prefix(shard)}{RECENT}", "callers\n")  # those that wait, see count.lua
                pipeline.execute()

        self._run(shard, drop)

    def recent_rejections(self, limit: int = 100, rule: str | None = None) -> list[Rejection]:
        """Return the recent rejections, the latest first, at most `limit`. rule: only those by this rule."""
        commands = self.commands
        calls = {shard: ("HGETALL", commands.key(shard, RECENT)) for shard in commands.shards}
        found = [remembered_in(*commands.execute_slowly(shard, [call])) for shard, call in calls.items()]
        found.append(RejectionCounts({}, {}, self._partition_tracker.waiting_tails()))
        return latest(found, commands.now_us(), limit, rule)

    def forget_tail(self, partition: str) -> int:
        """Delete the tail of a caller in the recent rejections, and return whether there was one."""
        commands = self.commands
        field = f"\t{partition}"
        return sum(commands.execute(each, [("HDEL", commands.key(each, RECENT), field)])[0] for each in commands.shards)

    def write_rules(self, text: str) -> None:
        """Store the copy of the rules, in the first shard; it does not expire."""
        self.commands.execute_slowly(0, [("SET", self.commands.key(0, "rules"), text)])

    def read_rules(self) -> str | None:
        """Return the copy of the rules; `None` = there is none."""
        [found] = self.commands.execute(0, [("GET", self.commands.key(0, "rules"))])
        return None if found is None else text_of(found)

    def versions(self) -> list[Version | None]:
        """Return the versions in the shards that answer, by one pipeline for each node; `None` = a shard holds none."""
        commands, problem = self.commands, None
        versions: list[Version | None] = []
        for shards in commands.nodes():
            words = [("MGET", commands.encoder.version_key(shard)) for shard in shards]  # GET fails for other types
            try:
                versions += [_version_of(found) for [found] in commands.execute(shards[0], words)]
            except EngineUnavailable as error:
                problem = error
        if problem and not versions:
            raise problem
        return versions

    def note_proxy(self, text: str) -> None:
        """Store what is known of a proxy that seems not to be trusted."""
        key = self.commands.key(0, f"proxy:{crc32(text.encode()) % MAX_PROXIES}")
        self.commands.execute(0, [("SET", key, text, "EX", str(PROXY_SECONDS))])

    def proxies(self) -> list[str]:
        """Return the stored texts about proxies."""
        keys = [self.commands.key(0, f"proxy:{place}") for place in range(MAX_PROXIES)]
        [found] = self.commands.execute(0, [("MGET", *keys)])
        return [_text_of_any(each) for each in found if each]

    def retire(self) -> None:
        """Record that another engine replaces this one and its `to_async`: their breakers do not count any more."""
        for server in self._cluster.servers if self._cluster else [self._transport.server]:
            server.breaker.retire()

    async def _send(self, shard: int, call: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        if self._cluster:
            return self._cluster.call(shard, call, deadline_at, kind)
        return self._transport.call(call, deadline_at, kind)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        await work

    def server_of(self, shard: int) -> Server:
        return self._cluster.server_of(shard) if self._cluster else self._transport.server

    def _run(self, shard: int, command: Callable[[Redis], T]) -> T:
        """Run a command outside of the request path, through the client; it must be safe to repeat."""
        if self._cluster:
            return self._cluster.run(shard, command)
        assert isinstance(self._client, Redis)
        try:
            return command(self._client)
        except (RedisError, OSError) as error:
            raise EngineUnavailable(explain(error)) from error


def _version_of(found: Any) -> Version | None:
    """Return the version in a shard. As in the script, what another program wrote is as good as missing."""
    match = re.fullmatch("([0-9]{1,16}):([0-9]{1,16})", _text_of_any(found or ""))
    return Version(int(match[2]), int(match[1])) if match else None


def _text_of_any(found: Any) -> str:
    """Return the text of a reply, whatever another program wrote."""
    return found.decode(errors="replace") if isinstance(found, bytes) else found
