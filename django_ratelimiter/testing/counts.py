"""Deleting counts for a test, like `cache.clear()` with limiters that count in Django's cache."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ..backend import begin_namespace, get_engine, reset_engine, usage_buffer
from ..engine.memory import MemoryEngine
from ..engine.redis import RedisEngine
from ..engine.redis.connections.faults import is_refused
from ..exceptions import EngineUnavailable
from ..limiter import fallback

#: The key that stays: it contains the version of the rules, and no counts.
_PRESERVED: Final = (b"version", b"shards")


def clear_counts() -> None:
    """Delete all counters, and all usage that has not been collected. Only for tests.

    This clears the memory of this process. On Redis, it finds and deletes every key of this test database, in the
    database of CACHE_ALIAS, except the version of the rules. If the user of Redis may not run SCAN, this process
    counts under new names from now on. Raises EngineUnavailable if Redis does not answer. Counts of your own ENGINE are
    not changed.
    """
    engine: Any = get_engine()
    exact = getattr(engine, "engine", engine)
    if isinstance(exact, MemoryEngine):
        exact.clear()
    elif isinstance(exact, RedisEngine):
        try:
            for shard in range(exact.shards):
                exact.commands.run(shard, partial(_delete, exact.prefix(shard)))
        except EngineUnavailable as error:
            if not (isinstance(error.__cause__, Exception) and is_refused(error.__cause__)):
                raise
            begin_namespace()
        reset_engine()  # with what this process has in hand
    fallback.local.clear()
    usage_buffer._forget()


def _delete(prefix: str, client: Any) -> None:
    keys: list[Any] = [name.encode() if isinstance(name, str) else name for name in client.scan_iter(f"{prefix}*")]
    for name in keys:
        if name.removeprefix(prefix.encode()) not in _PRESERVED:
            client.delete(name)
