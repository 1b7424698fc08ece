"""The heartbeats of processes, and the versions that all shards hold.

Each shard has a hash for each PERIOD, "processes:NUMBER", which expires, so that nothing must be deleted. A process
writes to one shard, or to one on another node if that does not answer. Readers read all shards.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from zlib import crc32

from ...exceptions import EngineUnavailable
from ..base import Version
from .commands import ShardCommands, fields_of
from .packing import text_of

#: Seconds of one hash. Readers get all heartbeats of the last PERIOD, and some that are up to twice as old.
PERIOD: Final = 120


class ShardHeartbeats(NamedTuple):
    """The heartbeats and versions in all shards."""

    #: The version of each shard that answered; `None` = it holds none.
    versions: list[Version | None]
    #: The number of shards that did not answer.
    unanswered: int
    #: The heartbeat of each process, by its name.
    texts: dict[str, str]


class RedisHeartbeats:
    """Writes and reads heartbeats."""

    def __init__(self, commands: ShardCommands) -> None:
        self._commands = commands

    def write(self, process: str, text: str) -> None:
        """Store the heartbeat of a process, and replace its earlier one. Raises EngineUnavailable."""
        commands, number = self._commands, self._period()
        home = crc32(process.encode()) % len(commands.shards)
        others = [shards[-1] for shards in commands.nodes() if home not in shards]
        for shard in (home, *others):
            key = self._key(shard, number)
            try:
                commands.execute(shard, [("HSET", key, process, text), ("EXPIRE", key, str(3 * PERIOD))])
                return
            except EngineUnavailable as error:
                problem = error
        raise problem

    def read(self) -> ShardHeartbeats:
        """Read all shards, in one pipeline for each node. Raises EngineUnavailable if none answers."""
        commands, number = self._commands, self._period()
        versions: list[Version | None] = []
        texts: dict[str, str] = {}
        problem: EngineUnavailable | None = None
        for shards in commands.nodes():
            words: list[tuple[str, ...]] = []
            for shard in shards:
                words += ("GET", commands.encoder.version_key(shard)), ("HGETALL", self._key(shard, number - 1))
                words += (("HGETALL", self._key(shard, number)),)
            try:
                found = commands.execute(shards[0], words)
            except EngineUnavailable as error:
                problem = error
                continue
            versions += map(_version_of, found[::3])
            for older, latest in zip(found[1::3], found[2::3], strict=True):
                texts |= fields_of(older) | fields_of(latest)
        if problem and not versions:
            raise problem
        return ShardHeartbeats(versions, len(commands.shards) - len(versions), texts)

    def _period(self) -> int:
        return self._commands.now_us() // (PERIOD * 1_000_000)

    def _key(self, shard: int, number: int) -> str:
        return self._commands.key(shard, f"processes:{number}")


def _version_of(found: Any) -> Version | None:
    epoch, _, number = text_of(found or "").partition(":")
    return Version(int(number), int(epoch)) if number else None
