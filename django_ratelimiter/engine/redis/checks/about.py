"""What the servers of an engine are, for a report of an error."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from redis import Redis

if TYPE_CHECKING:
    from ..engine import RedisEngine


def servers(engine: RedisEngine) -> list[str]:
    """Return the name, version and mode of the servers, each kind once. Raises EngineUnavailable."""
    found = Counter(engine.commands.run(shard, _kind) for shard, *_ in engine.commands.nodes())
    return [f"{kind} ({count} nodes)" if count > 1 else kind for kind, count in found.items()]


def _kind(client: Redis) -> str:
    server = client.info("server")
    name = server.get("server_name", "redis")
    mode = server.get("server_mode", server.get("redis_mode", "unknown mode"))
    return f"{name} {server.get(f'{name}_version', 'of an unknown version')}, {mode}"
