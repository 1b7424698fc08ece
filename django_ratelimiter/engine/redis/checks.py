"""Checks of servers: whether they run our scripts, which is tried on own keys, and whether they keep counters."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Final
from uuid import uuid4

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from ...exceptions import EngineUnavailable
from ..base import Charge, WrongServer
from ..call import NO_CHARGES, Call
from ..coroutines import run_sync
from ..limits import Algorithm, Limit
from ..partition_stats import MINUTE_US, is_sampled
from ..usage import UsageCarry
from .closing import close_minutes, waiting
from .engine import RedisEngine
from .packing import RECENT
from .protocol import ScriptMode

_LABEL: Final = "dry|run"

#: A partition that is sampled.
_WHO: Final = next(name for name in map(str, count()) if is_sampled(name))

_CHARGES: Final = Call.of(
    Charge(algorithm, Limit(1, 10, algorithm), usage=_LABEL, partition=_WHO) for algorithm in Algorithm
)


def dry_run(engine: RedisEngine) -> None:
    """Let each server of an engine decide, count and collect, and check the results.

    Raises EngineUnavailable with the reason if one is wrong. The keys are deleted, and would expire anyway.
    """
    dry = _DryEngine(engine)
    for shard, *_ in dry.commands.nodes():
        dry.run(shard)


class _DryEngine(RedisEngine):
    """An engine for the same server, with unique key names."""

    def __init__(self, engine: RedisEngine) -> None:
        client: Redis | RedisCluster = engine._client
        super().__init__(client, engine.namespace, shards=engine.shards, clock=engine.clock)
        self._unique_id = uuid4().hex
        self._minutes: set[int] = set()  # in which it may have counted
        self._prefixes = [f"{prefix}probe:{self._unique_id}:" for prefix in self._prefixes]

    def run(self, shard: int) -> None:
        try:
            self._spend(shard)
            self._collect(shard)
        finally:
            self._run(shard, lambda client: self._delete(client, shard))

    def _spend(self, shard: int) -> None:
        self._minutes = {self.estimate_time(None) // MINUTE_US}
        first = run_sync(self._call(ScriptMode.CHECK, _CHARGES, (), None, None, None, shard))
        minute = first[0].at_us // MINUTE_US  # by the server's clock, which may differ from ours
        self._minutes |= {minute, minute + 1}
        carry = UsageCarry(self._unique_id, ((minute, f"{_LABEL}\na", 1),))
        second = run_sync(self._call(ScriptMode.CHECK, _CHARGES, (), None, None, carry, shard))
        repeated = [verdict for verdict in second if not verdict.charge.limit.traits.resets_at_end]  # in one window
        if not all(verdict.allowed for verdict in first) or any(verdict.allowed for verdict in repeated):
            raise WrongServer("The server runs the script, but its decisions are wrong.")
        run_sync(self._call(ScriptMode.REFUND, NO_CHARGES, first, None, None, None, shard))

    def _collect(self, shard: int) -> None:
        later = (max(self._minutes) + 1) * MINUTE_US
        prefix = self.prefix(shard)
        batches = self._run(shard, lambda client: close_minutes(client, prefix, shard, later))
        counts = [count for batch in batches for count in self.read_usage(batch)]
        if sum(count.allowed + count.rejected for count in counts) != 3:
            raise WrongServer("The server runs the scripts, but its counts are wrong.")
        for batch in batches:
            self.drop_usage(batch)

    def _delete(self, client: Redis, shard: int) -> None:
        prefix, rule = self.prefix(shard), _LABEL.partition("|")[0]
        names = [RECENT, "batches", "source", "hours", "sampled", f"held:{self._unique_id}"]
        names += [f"{charge.key}{charge.limit.tag}" for charge in _CHARGES]
        names += [f"{name}:{minute}" for name in ("usage", "sample") for minute in self._minutes]
        for hour in {minute // 60 for minute in self._minutes}:
            names += f"allowed:{hour}:{rule}", f"rejected:{hour}:{rule}"
        with suppress(ResponseError):  # a server that rejects this has closed no minute either
            names += [f"batch:{batch}" for batch in waiting(client, prefix)]
        client.delete(*(f"{prefix}{name}" for name in names))


def evicting(engine: RedisEngine) -> set[str]:
    """Return the values of `maxmemory-policy` with which servers of this engine delete keys; empty if none does.

    Counters and usage expire, so the policies `volatile-…` delete them as well; the version, the run and the number
    of shards do not expire. Raises EngineUnavailable if a server does not answer, or its user may not run INFO.
    """
    return set().union(*[engine.commands.run(shard, _policy) for shard, *_ in engine.commands.nodes()])


def is_answer(error: EngineUnavailable) -> bool:
    """Return whether a server answered with an error; False = no server was reached, or it rejected the login."""
    return isinstance(error.__cause__, ResponseError)


def _policy(client: Redis) -> set[str]:
    """Return the policy of one server, if it deletes keys."""
    memory = client.info("memory")
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    return {policy} if int(memory.get("maxmemory", 0)) and policy != "noeviction" else set()
