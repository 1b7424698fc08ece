"""Statistics of partitions in Redis, over all shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import methodcaller
from typing import Any

from ..partition_stats import Hour, sums_of, top_of
from .commands import ShardCommands, fields_of
from .packing import text_of


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
        names = (name.partition(":") for name in self._members("hours"))
        return {(int(hour), rule) for hour, _, rule in names}

    def top_partitions(self, asked: Sequence[Hour], most: int) -> list[dict[str, tuple[int, int]]]:
        """Return the top partitions of these hours and rules, with estimates of their allowed and rejected requests."""
        counts: list[list[tuple[int, str, int]]] = [[] for _ in asked]
        for number, found in self._replies("ZRANGE", _sets(asked), 0, -1, "WITHSCORES"):
            place, side = divmod(number, 2)
            for who, score in _pairs(found):
                weight = float(score)
                counts[place].append((side, text_of(who), int(weight)))
                if not weight.is_integer():
                    self.estimated_hours.add(asked[place][0])
        return [top_of(each, most) for each in counts]

    def drop_top(self, asked: Sequence[Hour]) -> None:
        """Delete the top partitions of these hours and rules."""
        self._replies("DEL", _sets(asked))
        self._remove("hours", [f"{hour}:{rule}" for hour, rule in asked])

    def samples(self, before: int, most: int | None = None) -> dict[int, dict[tuple[str, str], int]]:
        """Return requests by label and partition for each minute before `before`. most: of the oldest minutes.

        A minute whose samples have expired has none.
        """
        minutes = sorted(minute for minute in map(int, self._members("sampled")) if minute < before)[:most]
        counts: list[list[tuple[str, str, int]]] = [[] for _ in minutes]
        for place, found in self._replies("HGETALL", [f"sample:{minute}" for minute in minutes]):
            for field, count in fields_of(found).items():
                label, _, who = field.partition("\n")
                counts[place].append((label, who, int(count)))
        return {minute: sums_of(each) for minute, each in zip(minutes, counts, strict=True)}

    def drop_samples(self, minutes: Iterable[int]) -> None:
        """Delete the samples of these minutes."""
        members = [*map(str, minutes)]
        self._replies("DEL", [f"sample:{minute}" for minute in members])
        self._remove("sampled", members)

    def _members(self, name: str) -> set[str]:
        """Return the members of a set, of all shards."""
        return {text_of(member) for _, members in self._replies("SMEMBERS", [name]) for member in members}

    def _remove(self, name: str, members: Sequence[str]) -> None:
        if members:
            self._replies("SREM", [name], *members)

    def _replies(self, command: str, names: Sequence[str], *words: object) -> list[tuple[int, Any]]:
        """Send a command for each of these keys to each shard. Return the replies, each with the place of its key."""
        replies: list[tuple[int, Any]] = []
        for shard in self._commands.shards:
            calls = [(command, self._commands.key(shard, name), *words) for name in names]
            replies += enumerate(self._commands.execute_slowly(shard, calls))
        return replies


def _sets(asked: Sequence[Hour]) -> list[str]:
    """Return the two sorted sets of each hour and rule: allowed requests, and rejected ones."""
    return [f"{name}:{hour}:{rule}" for hour, rule in asked for name in ("allowed", "rejected")]


def _pairs(found: list[Any]) -> Iterable[tuple[str | bytes, Any]]:
    """Yield members with their scores, which alternate in the older protocol."""
    return found if found and isinstance(found[0], list | tuple) else zip(found[::2], found[1::2], strict=True)
