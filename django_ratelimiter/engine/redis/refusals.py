"""What Redis knows of callers who were refused: the list of each shard, as refused.lua writes it, and their names.

A shard's hash "recent" holds refusals beside the minutes that are not closed. Names are told by the application.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from redis import Redis

from ..usage import FORGOTTEN_US, SHADOW, Refusal
from .packing import RECENT, command, text_of

#: Names are kept for so many seconds, in so many keys at most, all in the first shard.
NAME_SECONDS: Final = 7 * 86_400
MAX_NAMES: Final = 16_384

#: So many are deleted by one command at most.
_MAX_DELETED: Final = 1_000


def split(found: Mapping[Any, Any] | list[Any]) -> tuple[list[int], list[Refusal]]:
    """Return the minutes and the refusals. found: the reply to HGETALL, by turns where no client has paired it."""
    minutes, refusals = [], []
    for name, entry in found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True):
        field = text_of(name)
        if entry:
            at_us, since_us, times, label = text_of(entry).split(" ", 3)
            shadow = label.startswith(SHADOW)
            refusals.append(Refusal(int(at_us), int(since_us), int(times), label.removeprefix(SHADOW), field, shadow))
        else:
            minutes.append(int(field))
    return minutes, refusals


def refusals_of(found: Mapping[Any, Any] | list[Any]) -> list[Refusal]:
    """Return the refusals only."""
    return split(found)[1]


def forget_old(client: Redis, prefix: str, refusals: Iterable[Refusal], now_us: int) -> None:
    """Delete the refusals of a shard that are old; it may be repeated without harm."""
    old = [each.counter for each in refusals if each.at_us <= now_us - FORGOTTEN_US]
    if old:
        client.hdel(f"{prefix}{RECENT}", *old[:_MAX_DELETED])


class RedisNames:
    """Texts by digest, such as a caller's name.

    prefix: of the first shard's keys. run: has a command run in a shard. send: sends packed calls, no longer than the
    deadline, and returns what reads so many replies; `None` = by `run`.
    """

    def __init__(
        self,
        prefix: str,
        run: Callable[[int, Callable[[Redis], Any]], Any],
        send: Callable[[bytes, int], Callable[[], list[Any]]] | None = None,
    ) -> None:
        self._prefix, self._run, self._send = prefix, run, send

    def write(self, texts: Mapping[str, str]) -> None:
        """Keep these. One whose key another has takes its place."""
        words = [("SET", self._key(what), f"{what}\n{text}", "EX", str(NAME_SECONDS)) for what, text in texts.items()]

        def run(client: Redis) -> None:
            for each in words:
                client.execute_command(*each)

        if words and self._send:
            self._send(b"".join(command(*each) for each in words), len(words))()
        elif words:
            self._run(0, run)

    def read(self, whats: Sequence[str]) -> dict[str, str]:
        """Return those of these that are known, in one call."""
        keys = [self._key(what) for what in whats]
        found: list[Any] = self._run(0, lambda client: client.mget(keys)) if keys else []
        texts = {}
        for what, entry in zip(whats, found, strict=True):
            known, _, text = text_of(entry or "").partition("\n")
            if known == what:
                texts[what] = text
        return texts

    def _key(self, what: str) -> str:
        return f"{self._prefix}name:{crc32(what.encode()) % MAX_NAMES}"
