"""Names of callers in Redis, all in the first shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from zlib import crc32

from ..usage.rejections import NAME_SECONDS
from .commands import ShardCommands
from .packing import text_of

#: Names are in at most this number of keys.
MAX_NAMES: Final = 16_384


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
