"""The eviction policies of servers: what they do to keys when their memory is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import ResponseError

from ....exceptions import EngineUnavailable

if TYPE_CHECKING:
    from ..engine import RedisEngine


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
