"""What Redis knows of callers who were refused: the list of each shard, as refused.lua writes it, and their names.

A shard's hash "recent" holds refusals beside the minutes that are not closed. Names are told by the application.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from redis import Redis

from ..usage import COUNTER
from ..usage.refusals import FORGOTTEN_US, STEP_US, Denial, RefusalCounts, RefusalEntry, shares_of
from .connections.commands import Run, Send, execute
from .packing import RECENT, text_of

#: Names are kept for so many seconds, in so many keys at most, all in the first shard.
NAME_SECONDS: Final = 7 * 86_400
MAX_NAMES: Final = 16_384

#: So many denied callers stand in a list at most. One more, and only so many stay: of each entry the latest.
MAX_DENIALS, KEPT_DENIALS = 600, 400

#: Seconds after which a denied caller is forgotten.
DENIAL_SECONDS: Final = 86_400

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
        run: Run,
        send: Send | None = None,
    ) -> None:
        self._prefix, self._run, self._send = prefix, run, send

    def write(self, texts: Mapping[str, str]) -> None:
        """Keep these. One whose key another has takes its place."""
        words = [("SET", self._key(what), f"{what}\n{text}", "EX", str(NAME_SECONDS)) for what, text in texts.items()]
        if words:
            execute(self._run, self._send, 0, words)

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


class RedisDenials:
    """Callers whom access entries deny, in one hash of the first shard; it expires if nobody is denied for a day.

    Each has three fields: when last, when first (a line break more), and how often (one more). See RedisNames.
    """

    def __init__(self, prefix: str, run: Run, send: Send | None = None) -> None:
        self._key, self._run, self._send = f"{prefix}denials", run, send

    def add(self, denials: Sequence[Denial]) -> None:
        """Add these to what is known, in one call; in two where there are too many. Raises EngineUnavailable."""
        words: list[tuple[str, ...]] = []
        for what, at, since, times in denials:
            words += (
                ("HSET", self._key, what, str(at)),
                ("HSETNX", self._key, f"{what}\n", str(since)),
                ("HINCRBY", self._key, f"{what}\n\n", str(times)),
            )
        words += ("EXPIRE", self._key, str(DENIAL_SECONDS)), ("HLEN", self._key)
        *_, fields = execute(self._run, self._send, 0, words)
        if isinstance(fields, int) and fields > 3 * MAX_DENIALS:
            self._trim()

    def read(self) -> list[Denial]:
        """Return what is known, also what is older than a day. Raises EngineUnavailable."""
        [found] = execute(self._run, self._send, 0, [("HGETALL", self._key)])
        pairs = found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True)
        fields = {text_of(name): int(value) for name, value in pairs}
        return [
            Denial(what, at, fields.get(f"{what}\n", at), fields.get(f"{what}\n\n", 1))
            for what, at in fields.items()
            if not what.endswith("\n")
        ]

    def _trim(self) -> None:
        by_entry: dict[str, list[Denial]] = {}
        for each in sorted(self.read(), key=lambda each: -each.at):
            by_entry.setdefault(each.what.partition(" ")[0], []).append(each)
        kinds = sorted(by_entry.values(), key=len)
        shares = shares_of([[each.at for each in kind] for kind in kinds], KEPT_DENIALS)
        left_out = [each.what for kind, share in zip(kinds, shares, strict=True) for each in kind[share:]]
        fields = [f"{what}{mark}" for what in left_out for mark in ("", "\n", "\n\n")]
        places = range(0, len(fields), _MAX_DELETED)
        words = [("HDEL", self._key, *fields[place : place + _MAX_DELETED]) for place in places]
        if words:
            execute(self._run, self._send, 0, words)
