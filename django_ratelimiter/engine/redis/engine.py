"""RedisEngine: the charges of a call packed into one script call, its reply read into verdicts.

The path of a decision keeps connections of its own and speaks to them in packed commands: the client's own way
costs more than the script (benchmarks/), and it repeats a command whose reply was lost, which would count twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import methodcaller
from time import monotonic
from typing import Any, Final, TypeVar

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from ...exceptions import EngineUnavailable, StaleRules
from .. import usage
from ..base import Charge, UsageCount, Verdict, Version, leases
from .async_engine import AsyncRedisEngine
from .closing import close_minutes
from .cluster.nodes import Nodes, nodes_of
from .cluster.sharding import SHARDS, Call, Calls, Spread, names_by_shard
from .connections.clients import asynchronous
from .connections.faults import NOT_A_REPLY, explained
from .connections.greeting import Greeting
from .connections.transport import Links
from .partition_stats import RedisPartitions
from .protocol import ATTEMPTS, COUNTING, OUT_OF_TIME, Mode, Planner, mark_refunded, read, receipts_of, settle

logger = logging.getLogger("django_ratelimiter")

T = TypeVar("T")

#: What a client may raise where its server is out of reach.
CLIENT_ERRORS: Final = (RedisError, RedisClusterException, OSError)


class RedisEngine(Planner):
    """The engine on one Redis, on what Sentinel names as its master, or on a cluster.

    client: a redis-py client; the engine's own connections are made as its pool makes them.
    namespace: what all keys begin with. shards: among how many shards a cluster's keys are spread; elsewhere there is
    one. deadline: seconds that a decision waits for Redis at most, and a server that keeps failing is not asked until
    it answers again; `None` = the client's timeouts hold, and each call tries anew.
    clock: whose time is decided by: "server", or "client" = this process's, for servers that refuse TIME in scripts.
    Every method raises EngineUnavailable where Redis gives no answer. ValueError for a client that asks replicas.
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
        super().__init__(namespace, shards if isinstance(client, RedisCluster) else 1, clock)
        self._client = client
        self._deadline = deadline
        self._nodes: Nodes | None = None
        #: What is known of the partitions that were met.
        self.partitions = RedisPartitions(self, self._run)
        if isinstance(client, RedisCluster):
            self._nodes = nodes_of(client, self, deadline)
            self._spread = Spread(self, self._nodes.is_down)
        elif not getattr(client.connection_pool, "is_master", True):
            raise ValueError("client: asks the replicas that Sentinel names, and they do not count.")
        else:
            self._links = Links(client, Greeting(self), deadline)

    def for_event_loops(self) -> AsyncRedisEngine | None:
        """The same engine for event loops; `None` where its client cannot be had for them."""
        client = self._client
        twin = asynchronous(client) if isinstance(client, Redis) else client
        if twin is None or (self._nodes and self._nodes.only_in_threads):
            return None
        return AsyncRedisEngine(twin, self.namespace, shards=self.shards, deadline=self._deadline, clock=self.clock)

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        refused: bool = False,
        counts: usage.Held | None = None,
    ) -> list[Verdict]:
        """Decide and spend, all or nothing. Raises StaleRules if `version` is not the one in force.

        refused: the call is refused already: it is dealt with as if one more charge had refused it.
        counts: usage that this process has held; it is added once, however often it comes under the same id.
        """
        charges = charges if type(charges) is tuple else list(charges)
        receipts = receipts_of(refund_if_denied)
        if self._nodes:
            return self._go(self._spread.checking(charges, receipts, version, now_us, refused, counts), together=True)
        mode = Mode.REFUSED if refused else Mode.CHECK
        verdicts = self._call(mode, charges, receipts, version, now_us, counts)
        settle(receipts, verdicts, refused=refused)
        return verdicts

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now; spends and counts nothing."""
        charges = list(charges)
        if self._nodes:
            return self._go(self._spread.peeking(charges, now_us), together=True)
        return self._call(Mode.PEEK, charges, (), None, now_us)

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent. A verdict is refunded once; what is past is let go."""
        receipts = receipts_of(verdicts)
        if self._nodes:
            self._go(self._spread.refunding(receipts))
        elif receipts:
            self._call(Mode.REFUND, (), receipts, None, None)
            mark_refunded(receipts)

    def release(self, verdicts: Iterable[Verdict]) -> None:
        """End the leases of these verdicts; those of other algorithms are left alone."""
        self.refund(leases(verdicts))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys: their next request finds the full quota."""
        for shard, names in names_by_shard(self, charges).items():
            self._run(shard, methodcaller("delete", *names))

    def publish(self, version: int | Version) -> None:
        """Put a version in force, unless a later one is."""
        if self._nodes:
            return self._nodes.publish(self, version)
        with suppress(StaleRules):  # a later version is in force already
            self._call(Mode.PUBLISH, (), (), version, None)

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed and name all batches that wait, the oldest first.

        Those of shards that are out of reach are left for another time; EngineUnavailable if no shard can be reached.
        """
        if now_us is None:
            now_us = self._time_to_send()
        batches: list[str] = []
        problem, missed = None, 0
        down: set[object] = set()
        for shard in range(self.shards):
            node = self._nodes.node_of(shard) if self._nodes else None
            if node in down:
                missed += 1
                continue
            closing = partial(close_minutes, prefix=self._prefix(shard), shard=shard, now_us=now_us)
            try:
                found = self._run(shard, closing)
            except EngineUnavailable as error:
                problem, missed = error, missed + 1
                down.add(node)
            else:
                batches += found
        if problem and missed == self.shards:
            raise problem
        if problem:
            logger.warning("The usage in %d of %d shards cannot be collected now: %s", missed, self.shards, problem)
        return usage.in_order(batches)

    def read_usage(self, batch: str) -> list[UsageCount]:
        """The counts of one batch; empty once it was dropped or expired."""
        shard = usage.shard_of(batch)
        found = self._run(shard, lambda client: client.hgetall(f"{self._prefix(shard)}batch:{batch}"))
        fields = {_text(field): count for field, count in found.items()}
        fields.pop(usage.FILLER, None)
        return usage.counts_of(usage.minute_of(batch), {field: int(count) for field, count in fields.items()})

    def drop_usage(self, batch: str) -> None:
        """Forget a batch that has been collected."""
        shard = usage.shard_of(batch)

        def drop(client: Redis) -> None:
            with client.pipeline(transaction=True) as pipeline:
                pipeline.delete(f"{self._prefix(shard)}batch:{batch}")
                pipeline.srem(f"{self._prefix(shard)}batches", batch)
                pipeline.execute()

        self._run(shard, drop)

    def _call(
        self,
        mode: Mode,
        charges: Sequence[Charge],
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        counts: usage.Held | None = None,
        shard: int = 0,
        until: float | None = None,
    ) -> list[Verdict]:
        """One call of check.lua for these charges and receipts, which lie in one shard."""
        if now_us is None:
            now_us = self._time_to_send()
        times: Sequence[int] = (self._guessed(now_us),)
        began = monotonic()
        notes = self._notes.of(charges, times[0]) if mode in COUNTING else ()
        for _ in range(ATTEMPTS):
            call = self._packed(
                mode, charges, receipts, version, now_us, times, shard=shard, counts=counts, notes=notes
            )
            reply: list[int] = self._nodes.ask(shard, call, until) if self._nodes else self._links.ask(call, until)
            try:
                if reply[0] >= 0:
                    verdicts = read(reply, charges, spending=mode is not Mode.PEEK, refused=mode is Mode.REFUSED)
                    if notes:
                        self._notes.done(notes, reply[0])
                    return verdicts
                times = self._times(reply, now_us)
            except NOT_A_REPLY as error:
                self._distrust(shard)
                raise EngineUnavailable(f"A reply that no Redis sends: {reply!r:.100}") from error
            until = until or (self._deadline and began + self._deadline)
        raise EngineUnavailable(OUT_OF_TIME)

    def _distrust(self, shard: int) -> None:
        if self._nodes:
            self._nodes.distrust(shard)
        else:
            self._links.distrust()

    def _go(self, calls: Calls[T], *, together: bool = False) -> T:
        """Make these calls. together: within one deadline."""
        until = monotonic() + self._deadline if together and self._deadline is not None else None
        turn: Any = calls.send
        given: Any = None
        while True:
            try:
                call = turn(given)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                turn, given = calls.send, self._make(call, until)
            except Exception as error:
                turn, given = calls.throw, error

    def _make(self, call: Call, until: float | None) -> Any:
        if call.packed is None:
            return self._call(*call[1:7], call.shard, call.until(until))
        assert self._nodes
        return self._nodes.ask(call.shard, call.packed, call.until(until))

    def _run(self, shard: int, command: Callable[[Redis], T]) -> T:
        """Run a command off the path of decisions, through the client; it may be repeated without harm."""
        if self._nodes:
            return self._nodes.run(shard, command)
        assert isinstance(self._client, Redis)
        try:
            return command(self._client)
        except (RedisError, OSError) as error:
            raise EngineUnavailable(f"Redis did not do it: {explained(error)}") from error


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
