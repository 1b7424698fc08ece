"""Statistics of partitions in Redis, over all shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any

from ..partition_stats import Hour, K, sums_of, top_of
from .commands import ShardCommands, fields_of
from .packing import text_of

#: A command with a key for its reply.
Keyed = tuple[K, tuple[Any, ...]]


class RedisPartitions:
    """Reads and deletes statistics. Its methods raise EngineUnavailable if a shard cannot be reached."""

    def __init__(self, commands: ShardCommands) -> None:
        self._commands = commands
        #: The hours of which `top_partitions` has read estimates: not every call was reported.
        self.estimated_hours: set[int] = set()

    def now_us(self) -> int:
        """Return the time in microseconds by the clock of Redis; of several servers, the earliest.

        If calls send their time, it is the clock of this process.
        """
        sent = self._commands.encoder.time_to_send()
        if sent is not None:
            return sent
        run, shards = self._commands.run, self._commands.shards
        times: list[tuple[int, int]] = [run(shard, methodcaller("time")) for shard in shards]
        return min(seconds * 1_000_000 + microseconds for seconds, microseconds in times)

    def hours(self) -> set[Hour]:
        """Return the hours and rules with top partitions."""
        names = (name.partition(":") for name in set(chain(*self._members("hours"))))
        return {(int(hour), rule) for hour, _, rule in names}

    def top_size(self, asked: Sequence[Hour]) -> list[int]:
        """Return for each hour how many counts `top_partitions` would read."""

        def commands(prefix: str) -> Iterator[Keyed[int]]:
            for place, each in enumerate(asked):
                yield from ((place, ("ZCARD", key)) for key in _sets(prefix, each))

        sums = [0] * len(asked)
        for place, count in self._replies(commands):
            sums[place] += count
        return sums

    def top_partitions(self, asked: Sequence[Hour], most: int) -> list[dict[str, tuple[int, int]]]:
        """Return the top partitions of these hours and rules, with estimates of their allowed and rejected requests."""

        def commands(prefix: str) -> Iterator[Keyed[tuple[int, int]]]:
            for place, each in enumerate(asked):
                for side, key in enumerate(_sets(prefix, each)):
                    yield (place, side), ("ZRANGE", key, 0, -1, "WITHSCORES")

        counts: list[list[tuple[int, str, int]]] = [[] for _ in asked]
        for (place, side), found in self._replies(commands):
            for who, score in _pairs(found):
                weight = float(score)
                counts[place].append((side, text_of(who), int(weight)))
                if not weight.is_integer():
                    self.estimated_hours.add(asked[place][0])
        return [top_of(each, most) for each in counts]

    def drop_top(self, asked: Sequence[Hour]) -> None:
        """Delete the top partitions of these hours and rules."""
        self._delete(lambda prefix: [("DEL", *_sets(prefix, each)) for each in asked])
        self._delete(lambda prefix: [("SREM", f"{prefix}hours", f"{hour}:{rule}") for hour, rule in asked])

    def samples(self, before: int, most: int | None = None) -> dict[int, dict[tuple[str, str], int]]:
        """Return requests by label and partition for each minute before `before`. most: of the oldest minutes.

        A minute whose samples have expired has none.
        """
        listed = set(map(int, chain(*self._members("sampled"))))
        minutes = sorted(minute for minute in listed if minute < before)[:most]

        def commands(prefix: str) -> Iterator[Keyed[int]]:
            yield from ((minute, ("HGETALL", f"{prefix}sample:{minute}")) for minute in minutes)

        counts: dict[int, list[tuple[str, str, int]]] = {minute: [] for minute in minutes}
        for minute, found in self._replies(commands):
            for field, count in fields_of(found).items():
                label, _, who = field.partition("\n")
                counts[minute].append((label, who, int(count)))
        return {minute: sums_of(each) for minute, each in counts.items()}

    def drop_samples(self, minutes: Iterable[int]) -> None:
        """Delete the samples of these minutes."""
        minutes = list(minutes)
        self._delete(lambda prefix: [("DEL", f"{prefix}sample:{minute}") for minute in minutes])
        self._delete(lambda prefix: [("SREM", f"{prefix}sampled", minute) for minute in minutes])

    def _members(self, name: str) -> list[list[str]]:
        """Return the members of a set, for each shard."""
        found = self._replies(lambda prefix: [(None, ("SMEMBERS", f"{prefix}{name}"))])
        return [[text_of(member) for member in members] for _, members in found]

    def _replies(self, commands: Callable[[str], Iterable[Keyed[K]]]) -> Iterator[tuple[K, Any]]:
        """Yield the replies of all shards with their keys. commands: of a shard with this prefix of its names."""
        for shard in self._commands.shards:
            asked = list(commands(self._commands.key(shard, "")))
            replies = self._commands.execute_slowly(shard, [words for _, words in asked])
            yield from zip([key for key, _ in asked], replies, strict=True)

    def _delete(self, commands: Callable[[str], list[tuple[Any, ...]]]) -> None:
        for shard in self._commands.shards:
            self._commands.execute_slowly(shard, commands(self._commands.key(shard, "")))


def _sets(prefix: str, hour_and_rule: Hour) -> list[str]:
    """Return the two sorted sets of an hour and rule: allowed requests, and rejected ones."""
    hour, rule = hour_and_rule
    return [f"{prefix}{name}:{hour}:{rule}" for name in ("allowed", "rejected")]


def _pairs(found: list[Any]) -> Iterable[tuple[str | bytes, Any]]:
    """Yield members with their scores, which alternate in the older protocol."""
    return found if found and isinstance(found[0], list | tuple) else zip(found[::2], found[1::2], strict=True)
