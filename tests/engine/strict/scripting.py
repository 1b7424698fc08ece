"""The Lua of a strict server: 5.1 as in Redis and Valkey, or 5.4 as in Dragonfly."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Any

from lupa import lua51, lua54

from .keyspace import OK, CommandError, Reply, keys_of

RUNTIMES = {"5.1": lua51.LuaRuntime, "5.4": lua54.LuaRuntime}

#: A name that nobody has given a value is an error, as it is there.
STRICT = b"""
setmetatable(_G, { __index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end })
"""

_ITEM = re.compile(r"([<>]?)([dciI])(\d*)")


class Lua:
    """Runs scripts. call: runs a command, given its name and arguments.

    version: of Lua. integers: whether `struct` gives integers, where the language knows them.
    time: whether scripts may ask for it. undeclared: whether they may touch keys that are not in KEYS.
    """

    def __init__(
        self,
        call: Callable[[str, list[bytes]], Reply],
        *,
        version: str = "5.1",
        integers: bool = False,
        time: bool = True,
        undeclared: bool = False,
    ) -> None:
        self._call, self._version, self._integers = call, version, integers
        self._time, self._undeclared = time, undeclared
        self._scripts: dict[bytes, Any] = {}
        self._declared: set[bytes] = set()
        self._lua = lua = RUNTIMES[version](encoding=None, unpack_returned_tuples=True)
        found = lua.globals()
        found[b"redis"] = lua.table_from({b"call": self._from_script})
        found[b"struct"] = lua.table_from({b"pack": self._pack, b"unpack": self._unpack})
        lua.execute(STRICT)

    def load(self, script: bytes) -> bytes:
        sha = sha1(script, usedforsecurity=False).hexdigest().encode()
        if sha not in self._scripts:
            self._scripts[sha] = self._lua.compile(script)
        return sha

    def knows(self, sha: bytes) -> bool:
        return sha in self._scripts

    def run(self, sha: bytes, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Reply:
        found = self._lua.globals()
        found[b"KEYS"], found[b"ARGV"] = self._lua.table_from(keys), self._lua.table_from(arguments)
        self._declared = set(keys)
        try:
            return self._sent(self._scripts[sha]())
        except CommandError as error:
            text = str(error)
            raise CommandError(f"{text} script: {sha.decode()}, on @user_script:1.") from error
        except Exception as error:
            raise CommandError(f"ERR Error running script (call to {sha.decode()}): {error}") from error

    def _from_script(self, name: bytes, *given: Any) -> Any:
        command, arguments = name.decode().upper(), [self._word(each) for each in given]
        if command == "TIME" and not self._time:
            raise CommandError("ERR This Redis command is not allowed from script")
        for key in keys_of(command, arguments):
            if key not in self._declared and not self._undeclared:
                raise CommandError(f"ERR script tried accessing undeclared key, key: {key.decode()}")
        return self._received(self._call(command, arguments))

    def _word(self, given: Any) -> bytes:
        """An argument as it is sent: a float is none of the integers that commands ask for."""
        return given if isinstance(given, bytes) else str(given).encode()

    def _received(self, reply: Reply) -> Any:
        if reply is None:
            return False
        if isinstance(reply, OK):
            return self._lua.table_from({b"ok": reply.encode()})
        if isinstance(reply, list):
            return self._lua.table_from([self._received(each) for each in reply])
        return reply

    def _sent(self, value: Any) -> Reply:
        if isinstance(value, float):
            return b"%.17g" % value if self._version == "5.4" else int(value)
        if value is None or isinstance(value, bytes | bool | int):
            return None if value is False or value is None else int(value) if isinstance(value, bool) else value
        return [self._sent(value[place]) for place in range(1, len(value) + 1)]

    def _unpack(self, form: bytes, text: bytes, position: float = 1) -> tuple[Any, ...]:
        at = int(position) - 1
        found: list[Any] = []
        for kind, size in _items(form):
            if at + size > len(text):
                raise ValueError("data string too short")
            part = text[at : at + size]
            at += size
            found.append(_read(kind, part))
        if self._version == "5.4" and not self._integers:
            found = [float(each) for each in found]
        elif self._version == "5.4":
            found = [int(each) if kind != "d" else each for each, (kind, _) in zip(found, _items(form), strict=True)]
        return *found, at + 1

    def _pack(self, form: bytes, *values: float) -> bytes:
        return b"".join(_written(kind, size, value) for (kind, size), value in zip(_items(form), values, strict=True))


def _items(form: bytes) -> list[tuple[str, int]]:
    items = _ITEM.findall(form.decode())
    assert "".join(map("".join, items)) == form.decode(), form
    return [(kind, 8 if kind == "d" else int(size)) for _, kind, size in items]


def _read(kind: str, part: bytes) -> float:
    import struct

    if kind == "d":
        return struct.unpack("<d", part)[0]  # type: ignore[no-any-return]
    return int.from_bytes(part, "little", signed=kind == "i")


def _written(kind: str, size: int, value: float) -> bytes:
    assert kind in "iI"
    assert value == int(value), f"{value} is not whole"
    return int(value).to_bytes(size, "little", signed=kind == "i")
