"""The heartbeats of processes, and the versions that all shards hold.

Each shard has a hash for each PERIOD, "processes:NUMBER", which expires, so that nothing must be deleted. A process
writes to one shard, or to one on another node if that does not answer. Readers read all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from ...exceptions import EngineUnavailable
from ..base import Version
from .connections.commands import Run, Send, execute
from .packing import text_of
from .protocol import CallEncoder

#: Seconds of one hash. Readers get all heartbeats of the last PERIOD, and some that are up to twice as old.
PERIOD: Final = 120


class ShardHeartbeats(NamedTuple):
    """The heartbeats and versions in all shards.

    versions: of each shard that answered; `None` = it holds none. unanswered: number of shards that did not answer.
    texts: the heartbeat of each process, by its name.
    """

    versions: list[Version | None]
    unanswered: int
    texts: dict[str, str]


class RedisHeartbeats:
    """Writes and reads heartbeats.

    encoder: makes the names of keys. run: runs a command in a shard. send: sends packed calls to the only server;
    `None` = use `run`. node_of: returns an id of the node of a shard.
    """

    def __init__(
        self, encoder: CallEncoder, run: Run, send: Send | None, node_of: Callable[[int], object] = lambda shard: None
    ) -> None:
        self._encoder, self._run, self._send, self._node_of = encoder, run, send, node_of

    def write(self, process: str, text: str) -> None:
        """Store the heartbeat of a process, and replace its earlier one. Raises EngineUnavailable."""
        number, home = self._period(), crc32(process.encode()) % self._encoder.shards
        others = {self._node_of(shard): shard for shard in range(self._encoder.shards)}
        others.pop(self._node_of(home), None)
        for shard in (home, *others.values()):
            key = self._key(shard, number)
            try:
                words = [("HSET", key, process, text), ("EXPIRE", key, str(3 * PERIOD))]
                execute(self._run, self._send, shard, words)
                return
            except EngineUnavailable as error:
                problem = error
        raise problem

    def read(self) -> ShardHeartbeats:
        """Read all shards, in one pipeline for each node. Raises EngineUnavailable if none answers."""
        number = self._period()
        nodes: dict[object, list[int]] = {}
        for shard in range(self._encoder.shards):
            nodes.setdefault(self._node_of(shard), []).append(shard)
        versions: list[Version | None] = []
        texts: dict[str, str] = {}
        problem: EngineUnavailable | None = None
        for shards in nodes.values():
            words = [each for shard in shards for each in self._reading_words(shard, number)]
            try:
                found = execute(self._run, self._send, shards[0], words)
            except EngineUnavailable as error:
                problem = error
                continue
            versions += map(_version_of, found[::3])
            for older, latest in zip(found[1::3], found[2::3], strict=True):
                texts |= {text_of(name): text_of(text) for each in (older, latest) for name, text in _pairs(each)}
        if problem and not versions:
            raise problem
        return ShardHeartbeats(versions, self._encoder.shards - len(versions), texts)

    def _reading_words(self, shard: int, number: int) -> Iterable[tuple[str, ...]]:
        yield "GET", self._encoder.version_key(shard)
        yield "HGETALL", self._key(shard, number - 1)
        yield "HGETALL", self._key(shard, number)

    def _period(self) -> int:
        encoder = self._encoder
        return encoder.estimate_time(encoder.time_to_send()) // (PERIOD * 1_000_000)

    def _key(self, shard: int, number: int) -> str:
        return f"{self._encoder._prefix(shard)}processes:{number}"


def _version_of(found: Any) -> Version | None:
    epoch, _, number = text_of(found or "").partition(":")
    return Version(int(number), int(epoch)) if number else None


def _pairs(found: Mapping[Any, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    """Return fields and values of a reply to HGETALL; they alternate if the client has not paired them."""
    return found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True)
