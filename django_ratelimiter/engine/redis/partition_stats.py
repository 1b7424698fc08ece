"""Statistics of partitions in Redis, over all shards: each partition is in one shard only, so numbers add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any, Final

from redis import Redis

from ..partition_stats import Hour, merge_top
from .packing import text_of
from .protocol import CallEncoder

#: Maximum number of commands in one pipeline.
MAX_COMMANDS: Final = 1_000

Run = Callable[[int, Callable[[Redis], Any]], Any]


class RedisPartitions:
    """Reads each shard. run: runs a command in a shard; raises EngineUnavailable if it cannot be reached."""

    def __init__(self, encoder: CallEncoder, run: Run) -> None:
        self._encoder = encoder
        self._run = run

    def now_us(self) -> int:
        """Return the time in microseconds by the clock of Redis; of several servers, the earliest.

        If calls send their time, it is the clock of this process.
        """
        sent = self._encoder.time_to_send()
        if sent is not None:
            return sent
        times: list[tuple[int, int]] = [self._run(shard, methodcaller("time")) for shard in self._shards()]
        return min(seconds * 1_000_000 + microseconds for seconds, microseconds in times)

    def hours(self) -> set[Hour]:
        """Return the hours and labels with data."""
        found = (self._run(shard, self._members(shard, "hours")) for shard in self._shards())
        return {(int(hour), label) for hour, _, label in (name.partition(":") for name in set(chain(*found)))}

    def count(self, groups: Sequence[tuple[str, Sequence[int]]]) -> list[int]:
        """Return for each group the number of different partitions under a label in some hours; to about 1 %."""
        sums = [0] * len(groups)
        for shard in self._shards():
            commands = [
                ("PFCOUNT", *(f"{self._prefix(shard)}unique:{hour}:{label}" for hour in hours))
                for label, hours in groups
            ]
            for place, count in enumerate(self._all(shard, commands)):
                sums[place] += count
        return sums

    def top_size(self, asked: Sequence[Hour]) -> list[int]:
        """Return for each hour how many counts `top_partitions` would read."""
        sums = [0] * len(asked)
        for shard in self._shards():
            keys = [(place, key) for place, each in enumerate(asked) for _, key in self._sets(shard, each)]
            counts = self._all(shard, [("ZCARD", key) for _, key in keys])
            for (place, _), count in zip(keys, counts, strict=True):
                sums[place] += count
        return sums

    def top_partitions(self, asked: Sequence[Hour], most: int) -> list[dict[str, tuple[int, int]]]:
        """Return the top partitions of these hours and rules, with estimates of their allowed and rejected requests."""
        weights: list[dict[str, list[int]]] = [{} for _ in asked]
        for shard in self._shards():
            keys = [(place, side, key) for place, each in enumerate(asked) for side, key in self._sets(shard, each)]
            commands = [("ZRANGE", key, 0, -1, "WITHSCORES") for _, _, key in keys]
            for (place, side, _), found in zip(keys, self._all(shard, commands), strict=True):
                for partition, weight in _pairs(found):
                    weights[place].setdefault(text_of(partition), [0, 0])[side] += int(weight)
        return [merge_top({whom: (pair[0], pair[1]) for whom, pair in each.items()}, most) for each in weights]

    def drop_top(self, asked: Sequence[Hour]) -> None:
        """Delete the top partitions of these hours and rules."""
        for shard in self._shards():
            self._all(shard, [("DEL", *(key for _, key in self._sets(shard, each))) for each in asked])

    def drop_hours(self, hours: Iterable[Hour]) -> None:
        """Delete the partitions of these hours and labels."""
        names = [f"{hour}:{label}" for hour, label in hours]
        for shard in self._shards():
            prefix = self._prefix(shard)
            gone = [("DEL", f"{prefix}unique:{name}") for name in names]
            self._all(shard, [*gone, *(("SREM", f"{prefix}hours", name) for name in names)])

    def samples(self, before: int, most: int | None = None) -> dict[int, dict[tuple[str, str], int]]:
        """Return requests by label and partition for each minute before `before`. most: of the oldest minutes.

        A minute whose samples have expired has none.
        """
        listed = [set(map(int, self._run(shard, self._members(shard, "sampled")))) for shard in self._shards()]
        minutes = sorted(minute for minute in set(chain(*listed)) if minute < before)[:most]
        samples: dict[int, dict[tuple[str, str], int]] = {minute: {} for minute in minutes}
        for shard, known in zip(self._shards(), listed, strict=True):
            here = [minute for minute in minutes if minute in known]
            commands = [("HGETALL", f"{self._prefix(shard)}sample:{minute}") for minute in here]
            for minute, found in zip(here, self._all(shard, commands), strict=True):
                for field, count in found.items():
                    label, _, partition = text_of(field).partition("\n")
                    samples[minute][label, partition] = int(count)
        return samples

    def drop_samples(self, minutes: Iterable[int]) -> None:
        """Delete the samples of these minutes."""
        minutes = list(minutes)
        for shard in self._shards():
            prefix = self._prefix(shard)
            gone = [("DEL", f"{prefix}sample:{minute}") for minute in minutes]
            self._all(shard, [*gone, *(("SREM", f"{prefix}sampled", minute) for minute in minutes)])

    def _shards(self) -> range:
        return range(self._encoder.shards)

    def _prefix(self, shard: int) -> str:
        return self._encoder._prefix(shard)

    def _sets(self, shard: int, each: Hour) -> list[tuple[int, str]]:
        """Return the two sorted sets of an hour and rule: allowed requests, and rejected ones."""
        hour, rule = each
        return [
            (side, f"{self._prefix(shard)}{name}:{hour}:{rule}") for side, name in enumerate(("allowed", "rejected"))
        ]

    def _members(self, shard: int, name: str) -> Callable[[Redis], list[str]]:
        return lambda client: [text_of(member) for member in client.smembers(f"{self._prefix(shard)}{name}")]

    def _all(self, shard: int, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the replies to these commands; they must be safe to repeat."""
        replies: list[Any] = []
        for place in range(0, len(commands), MAX_COMMANDS):
            some = commands[place : place + MAX_COMMANDS]

            def run(client: Redis, some: Sequence[tuple[Any, ...]] = some) -> list[Any]:
                with client.pipeline(transaction=False) as pipeline:
                    for command in some:
                        pipeline.execute_command(*command)
                    return pipeline.execute()

            replies += self._run(shard, run)
        return replies


def _pairs(found: list[Any]) -> Iterable[tuple[str | bytes, Any]]:
    """Yield members with their scores, which alternate in the older protocol."""
    return found if found and isinstance(found[0], list | tuple) else zip(found[::2], found[1::2], strict=True)
