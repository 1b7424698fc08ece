"""Commands that are not decisions, such as reading lists and statistics, sent to the shards of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redis import Redis

from ...exceptions import EngineUnavailable
from .connections.faults import explain
from .packing import command, text_of
from .protocol import CallEncoder

#: Maximum number of commands in one pipeline of the client.
MAX_COMMANDS: Final = 1_000


class ShardCommands:
    """Sends commands to the shards of an engine. They must be safe to repeat. Raises EngineUnavailable.

    encoder: makes the names of keys. run: calls a function with a client of a shard's node. send: sends packed calls to
    the only server, over the connections of decisions, and returns a function that reads this number of replies;
    `None` = use `run`. node_of: returns an id of the node of a shard.
    """

    def __init__(
        self,
        encoder: CallEncoder,
        run: Callable[[int, Callable[[Redis], Any]], Any],
        send: Callable[[bytes, int], Callable[[], list[Any]]] | None = None,
        node_of: Callable[[int], object] = lambda shard: None,
    ) -> None:
        self.encoder = encoder
        self.run = run
        self.node_of = node_of
        self._send = send

    @property
    def shards(self) -> range:
        """Return the numbers of all shards."""
        return range(self.encoder.shards)

    def key(self, shard: int, name: str) -> str:
        """Return the name of a key in a shard."""
        return f"{self.encoder.prefix(shard)}{name}"

    def nodes(self) -> list[list[int]]:
        """Return the shards of each node. Shards whose node is not known are together."""
        nodes: dict[object, list[int]] = {}
        for shard in self.shards:
            nodes.setdefault(self.node_of(shard), []).append(shard)
        return list(nodes.values())

    def now_us(self) -> int:
        """Return an estimate of the engine's time in microseconds."""
        return self.encoder.estimate_time(self.encoder.time_to_send())

    def execute(self, shard: int, words: Sequence[tuple[str, ...]]) -> list[Any]:
        """Return the replies to these commands, from one pipeline to the node of a shard."""
        if self._send is None:
            return self.execute_slowly(shard, words)
        replies = self._send(b"".join(command(*each) for each in words), len(words))()
        for reply in replies:
            if isinstance(reply, Exception):  # such as a command that the user may not run
                raise EngineUnavailable(explain(reply)) from reply
        return replies

    def execute_slowly(self, shard: int, words: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the replies to these commands, from pipelines of the client, which do not have our deadline."""
        replies: list[Any] = []
        for place in range(0, len(words), MAX_COMMANDS):
            some = words[place : place + MAX_COMMANDS]

            def run(client: Redis, some: Sequence[tuple[Any, ...]] = some) -> list[Any]:
                with client.pipeline(transaction=False) as pipeline:
                    for each in some:
                        pipeline.execute_command(*each)
                    return pipeline.execute()

            replies += self.run(shard, run)
        return replies


def fields_of(found: Mapping[Any, Any] | list[Any]) -> dict[str, str]:
    """Return a reply to HGETALL as texts. Depending on the client, fields and values alternate, or are bytes."""
    pairs = found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True)
    return {text_of(name): text_of(value) for name, value in pairs}
