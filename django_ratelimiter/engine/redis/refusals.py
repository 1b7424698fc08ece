"""What Redis knows of callers who were refused: the list of each shard, as refused.lua writes it, and their names.

A shard's hash "recent" holds refusals beside the minutes that are not closed. Names are told by the application.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from redis import Redis

from ..usage import COUNTER
from ..usage.refusals import FORGOTTEN_US, STEP_US, RefusalCounts, RefusalEntry
from .packing import RECENT, command, text_of

#: Names are kept for so many seconds, in so many keys at most, all in the first shard.
NAME_SECONDS: Final = 7 * 86_400
MAX_NAMES: Final = 16_384

#: So many are deleted by one command at most.
_MAX_DELETED: Final = 1_000


#: What the number of an entry counts its latest step in; the rest is how many refusals there were.
_STEP: Final = 1 << 20

_PREFIX: Final = re.compile(r"\n\t\{[^}]*\}:")


def split(found: Mapping[Any, Any] | list[Any]) -> tuple[list[int], RefusalCounts]:
    """Return the minutes and the refusals, named as in Redis.

    found: the reply to HGETALL, by turns where no client has paired it. What has a name of no such kind is left out.
    """
    pairs = found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True)
    fields = {text_of(name): text_of(value) for name, value in pairs}
    minutes, entries, sampled = [], dict[str, RefusalEntry](), dict[str, int]()
    for name, value in fields.items():
        if name.isdigit() and not value:
            minutes.append(int(name))
        elif name.endswith("\n") or not value.isdigit():
            continue
        elif COUNTER in name:
            last, times = divmod(int(value), _STEP)
            entries[name] = RefusalEntry(last, int(fields.get(f"{name}\n", last)), times)
        elif "\n" in name:
            sampled[name] = int(value)
    return minutes, RefusalCounts(entries, sampled)


def remembered_in(found: Mapping[Any, Any] | list[Any]) -> RefusalCounts:
    """Return the refusals, named without what all keys begin with."""
    entries, sampled = split(found)[1]
    return RefusalCounts({_PREFIX.sub(COUNTER, name): entry for name, entry in entries.items()}, sampled)


def forget_old(client: Redis, prefix: str, remembered: RefusalCounts, now_us: int) -> None:
    """Delete what is old of a shard; it may be repeated without harm."""
    oldest = (now_us - FORGOTTEN_US) // STEP_US
    old = [field for field, step in remembered.sampled.items() if step <= oldest]
    for name, entry in remembered.entries.items():
        if entry.last <= oldest:
            old += name, f"{name}\n"
    for place in range(0, len(old), _MAX_DELETED):
        client.hdel(f"{prefix}{RECENT}", *old[place : place + _MAX_DELETED])


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
            with client.pipeline(transaction=False) as pipeline:
                for each in words:
                    pipeline.execute_command(*each)
                pipeline.execute()

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
