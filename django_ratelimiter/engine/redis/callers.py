"""Callers in Redis: their names, and those whom access entries deny. Both are in the first shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from ..usage.rejections import NAME_SECONDS, Denial, shares_of
from .commands import ShardCommands, fields_of
from .packing import text_of
from .rejections import MAX_DELETED

#: Names are in at most this number of keys.
MAX_NAMES: Final = 16_384

#: Maximum number of denied callers in the list; above that, only this number remains: the latest of each entry.
MAX_DENIALS, KEPT_DENIALS = 600, 400

#: Seconds after which a denied caller is deleted.
DENIAL_SECONDS: Final = 86_400


class RedisNames:
    """Texts by digest, such as a caller's name. Its methods raise EngineUnavailable."""

    def __init__(self, commands: ShardCommands) -> None:
        self._commands = commands

    def write(self, texts: Mapping[str, str]) -> None:
        """Store these texts. A text replaces another one with the same key."""
        words = [("SET", self._key(what), f"{what}\n{text}", "EX", str(NAME_SECONDS)) for what, text in texts.items()]
        if words:
            self._commands.execute(0, words)

    def read(self, whats: Sequence[str]) -> dict[str, str]:
        """Return those of these texts that are known, in one call."""
        [found] = self._commands.execute_slowly(0, [("MGET", *map(self._key, whats))]) if whats else [[]]
        texts = {}
        for what, entry in zip(whats, found, strict=True):
            known, _, text = text_of(entry or "").partition("\n")
            if known == what:
                texts[what] = text
        return texts

    def delete(self, whats: Sequence[str]) -> None:
        """Delete these texts, in one call."""
        if whats:
            self._commands.execute(0, [("DEL", *map(self._key, whats))])

    def _key(self, what: str) -> str:
        return self._commands.key(0, f"name:{crc32(what.encode()) % MAX_NAMES}")


class RedisDenials:
    """Callers that access entries deny, in one hash; it expires if no caller is denied for a day.

    Each has three fields: the last time; the first time (plus a line break); how often (plus another).
    Its methods raise EngineUnavailable.
    """

    def __init__(self, commands: ShardCommands) -> None:
        #: The name of the hash.
        self.key = commands.key(0, "denials")
        self._commands = commands

    def add(self, denials: Sequence[Denial]) -> None:
        """Add these to the stored ones, in one call; in two if there are too many."""
        words: list[tuple[str, ...]] = []
        for what, at, since, times in denials:
            words += (
                ("HSET", self.key, what, str(at)),
                ("HSETNX", self.key, f"{what}\n", str(since)),
                ("HINCRBY", self.key, f"{what}\n\n", str(times)),
            )
        words += ("EXPIRE", self.key, str(DENIAL_SECONDS)), ("HLEN", self.key)
        *_, fields = self._commands.execute(0, words)
        if isinstance(fields, int) and fields > 3 * MAX_DENIALS:
            self._trim()

    def read(self) -> list[Denial]:
        """Return all stored ones, including those older than a day."""
        [found] = self._commands.execute(0, [("HGETALL", self.key)])
        return denials_in(found)

    def _trim(self) -> None:
        by_entry: dict[str, list[Denial]] = {}
        for each in sorted(self.read(), key=lambda each: -each.at):
            by_entry.setdefault(each.what.partition(" ")[0], []).append(each)
        kinds = sorted(by_entry.values(), key=len)
        shares = shares_of([[each.at for each in kind] for kind in kinds], KEPT_DENIALS)
        left_out = [each.what for kind, share in zip(kinds, shares, strict=True) for each in kind[share:]]
        fields = [f"{what}{mark}" for what in left_out for mark in ("", "\n", "\n\n")]
        places = range(0, len(fields), MAX_DELETED)
        words = [("HDEL", self.key, *fields[place : place + MAX_DELETED]) for place in places]
        if words:
            self._commands.execute(0, words)


def denials_in(found: Mapping[Any, Any] | list[Any]) -> list[Denial]:
    """Return the denied callers. found: the reply to HGETALL."""
    fields = {name: int(value) for name, value in fields_of(found).items()}
    return [
        Denial(what, at, fields.get(f"{what}\n", at), fields.get(f"{what}\n\n", 1))
        for what, at in fields.items()
        if not what.endswith("\n")
    ]
