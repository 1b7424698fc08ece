"""The keys of a strict server, and the commands that the limiter uses of Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Reply = Any


class CommandError(Exception):
    """What a server answers instead."""


class OK(str):
    """A status."""


WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

#: Commands whose arguments are no keys at all; of the others the first is one, and of these all are.
KEYLESS = {"TIME", "PING", "SELECT", "FLUSHDB", "INFO"}
ALL_KEYS = {"DEL", "UNLINK", "EXISTS", "RENAME", "MGET"}


class Hash(dict[bytes, bytes]):
    """Fields and values."""


class Scores(dict[bytes, int]):
    """Members and their scores."""


class Keyspace:
    """now: gives the time in microseconds since the Unix epoch."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.keys: dict[bytes, Any] = {}
        self.ends: dict[bytes, int] = {}  # milliseconds

    def run(self, name: str, arguments: list[bytes]) -> Reply:
        command = getattr(self, f"do_{name.lower()}", None)
        if command is None:
            raise CommandError(f"ERR unknown command '{name}'")
        return command(*arguments)

    def _find(self, key: bytes, kind: type, *, make: bool = False) -> Any:
        found = self.keys.get(key) if self._is_there(key) else None
        if found is None:
            found = kind()
            if make:
                self.keys[key] = found
        if type(found) is not kind:
            raise CommandError(WRONGTYPE)
        return found

    def _drop(self, key: bytes) -> bool:
        self.ends.pop(key, None)
        return self.keys.pop(key, None) is not None

    def _is_there(self, key: bytes) -> bool:
        if key in self.ends and self.ends[key] * 1_000 < self.now():
            self._drop(key)
        return key in self.keys

    def _tidy(self, key: bytes) -> None:
        if not self.keys[key]:
            self._drop(key)

    # Any keys

    def do_del(self, *keys: bytes) -> int:
        return sum(self._drop(key) for key in keys)

    do_unlink = do_del

    def do_exists(self, *keys: bytes) -> int:
        return sum(self._is_there(key) for key in keys)

    def do_rename(self, key: bytes, name: bytes) -> OK:
        if not self._is_there(key):
            raise CommandError("ERR no such key")
        self._drop(name)
        self.keys[name] = self.keys.pop(key)
        if key in self.ends:
            self.ends[name] = self.ends.pop(key)
        return OK("OK")

    def do_expire(self, key: bytes, seconds: bytes) -> int:
        return self.do_pexpire(key, b"%d" % (1_000 * whole(seconds)))

    def do_pexpire(self, key: bytes, milliseconds: bytes) -> int:
        if not self._is_there(key):
            return 0
        self.ends[key] = self.now() // 1_000 + whole(milliseconds)
        return 1

    def do_pttl(self, key: bytes) -> int:
        if not self._is_there(key):
            return -2
        return self.ends[key] - self.now() // 1_000 if key in self.ends else -1

    def do_flushdb(self) -> OK:
        self.keys.clear()
        self.ends.clear()
        return OK("OK")

    # What has no key

    def do_time(self) -> list[bytes]:
        return [b"%d" % part for part in divmod(self.now(), 1_000_000)]

    def do_ping(self) -> OK:
        return OK("PONG")

    def do_select(self, _number: bytes) -> OK:
        return OK("OK")

    def do_info(self, *_section: bytes) -> bytes:
        return b"# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"

    # Strings

    def do_get(self, key: bytes) -> bytes | None:
        return self._find(key, bytes) if self._is_there(key) else None

    def do_mget(self, *keys: bytes) -> list[bytes | None]:
        """What holds no text is passed over, as by a server."""
        held = [self.keys[key] if self._is_there(key) else None for key in keys]
        return [each if type(each) is bytes else None for each in held]

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> OK | None:
        words = [option.upper() for option in options]
        if b"NX" in words and self._is_there(key):
            return None
        self.keys[key] = value
        if b"KEEPTTL" not in words:
            self.ends.pop(key, None)
        for word, factor in ((b"PX", 1), (b"EX", 1_000)):
            if word in words:
                self.ends[key] = self.now() // 1_000 + factor * whole(options[words.index(word) + 1])
        return OK("OK")

    # Hashes

    def do_hincrby(self, key: bytes, field: bytes, units: bytes) -> int:
        fields = self._find(key, Hash, make=True)
        fields[field] = b"%d" % (int(fields.get(field, 0)) + whole(units))
        return int(fields[field])

    def do_hset(self, key: bytes, *words: bytes) -> int:
        fields = self._find(key, Hash, make=True)
        before = len(fields)
        fields.update(zip(words[::2], words[1::2], strict=True))
        return len(fields) - before

    def do_hsetnx(self, key: bytes, field: bytes, value: bytes) -> int:
        fields = self._find(key, Hash, make=True)
        return int(fields.setdefault(field, value) is value)

    def do_hget(self, key: bytes, field: bytes) -> bytes | None:
        return self._find(key, Hash).get(field)

    def do_hgetall(self, key: bytes) -> list[bytes]:
        return [word for pair in self._find(key, Hash).items() for word in pair]

    def do_hlen(self, key: bytes) -> int:
        return len(self._find(key, Hash))

    def do_hscan(self, key: bytes, cursor: bytes, *_options: bytes) -> list[Any]:
        return [b"0", self.do_hgetall(key)]

    def do_hdel(self, key: bytes, *fields: bytes) -> int:
        held = self._find(key, Hash, make=True)
        gone = sum(held.pop(field, None) is not None for field in fields)
        self._tidy(key)
        return gone

    # Sets

    def do_sadd(self, key: bytes, *members: bytes) -> int:
        held: set[bytes] = self._find(key, set, make=True)
        before = len(held)
        held.update(members)
        return len(held) - before

    def do_srem(self, key: bytes, *members: bytes) -> int:
        held: set[bytes] = self._find(key, set, make=True)
        before = len(held)
        held.difference_update(members)
        after = len(held)
        self._tidy(key)
        return before - after

    def do_smembers(self, key: bytes) -> list[bytes]:
        return list(self._find(key, set))

    # Sorted sets

    def do_zincrby(self, key: bytes, units: bytes, member: bytes) -> bytes:
        scores = self._find(key, Scores, make=True)
        scores[member] = scores.get(member, 0) + whole(units)
        return b"%d" % scores[member]

    def do_zcard(self, key: bytes) -> int:
        return len(self._find(key, Scores))

    def do_zrange(self, key: bytes, first: bytes, last: bytes, *_with_scores: bytes) -> list[bytes]:
        members = self._ranked(key)[slice_of(first, last)]
        return [word for member, score in members for word in (member, b"%d" % score)]

    def do_zremrangebyrank(self, key: bytes, first: bytes, last: bytes) -> int:
        gone = self._ranked(key)[slice_of(first, last)]
        for member, _ in gone:
            del self.keys[key][member]
        return len(gone)

    def _ranked(self, key: bytes) -> list[tuple[bytes, int]]:
        return sorted(self._find(key, Scores).items(), key=lambda pair: (pair[1], pair[0]))


def keys_of(name: str, arguments: list[bytes]) -> list[bytes]:
    """The keys that a command touches."""
    if name in KEYLESS:
        return []
    return arguments if name in ALL_KEYS else arguments[:1]


def whole(word: bytes) -> int:
    """A whole number as a server reads it: 7, and not 7.0."""
    try:
        return int(word.decode())
    except ValueError:
        raise CommandError("ERR value is not an integer or out of range") from None


def slice_of(first: bytes, last: bytes) -> slice:
    end = whole(last)
    return slice(whole(first), None if end == -1 else end + 1)
