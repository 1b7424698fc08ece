"""The strict server itself, on a port of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Lock, Thread
from typing import Any

import hiredis

from .keyspace import OK, CommandError, Keyspace, Reply
from .scripting import Lua


@dataclass(frozen=True)
class Rules:
    """What a server lets scripts do, see Lua."""

    version: str = "5.1"
    integers: bool = False
    time: bool = True
    undeclared: bool = False

    def __str__(self) -> str:
        words = [f"lua {self.version}", "integers" * self.integers, "no time" * (not self.time)]
        return ", ".join(filter(None, [*words, "undeclared" * self.undeclared]))


class StrictServer:
    """Listens from `with` on. calls: the commands that came in, by name; `reset` forgets them.

    now: gives the server's time in microseconds.
    """

    def __init__(self, rules: Rules, now: Callable[[], int] = lambda: time.time_ns() // 1_000) -> None:
        self.now = now
        self.space = Keyspace(lambda: self.now())
        self.calls: list[str] = []
        self.sent: list[list[bytes]] = []
        self._lock = Lock()
        self._lua = Lua(
            self.space.run,
            version=rules.version,
            integers=rules.integers,
            time=rules.time,
            undeclared=rules.undeclared,
        )
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.answer = self.answer
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}/0?protocol=2"

    def __enter__(self) -> StrictServer:
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reset(self) -> None:
        self.calls.clear()
        self.sent.clear()

    def answer(self, words: list[bytes]) -> Reply:
        """The reply to a command, made while no other runs."""
        with self._lock:
            name, *arguments = words
            self.calls.append(name.decode().upper())
            self.sent.append(words)
            try:
                return self._run(name.decode().upper(), arguments)
            except CommandError as error:
                return error

    def _run(self, name: str, arguments: list[bytes]) -> Reply:
        match name:
            case "SCRIPT" if arguments[0].upper() == b"EXISTS":
                return [int(self._lua.knows(sha)) for sha in arguments[1:]]
            case "SCRIPT":
                return self._lua.load(arguments[1])
            case "EVAL":
                arguments[0] = self._lua.load(arguments[0])
                return self._evaluated(arguments)
            case "EVALSHA":
                return self._evaluated(arguments)
            case "HELLO" | "CLIENT":
                raise CommandError(f"ERR unknown command '{name}'")
        return self.space.run(name, arguments)

    def _evaluated(self, arguments: list[bytes]) -> Reply:
        sha, number, *rest = arguments
        if not self._lua.knows(sha):
            raise CommandError("NOSCRIPT No matching script. Please use EVAL.")
        return self._lua.run(sha, rest[: int(number)], rest[int(number) :])


class _Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    answer: Callable[[list[bytes]], Reply]


class _Handler(BaseRequestHandler):
    """One connection."""

    server: _Server

    def handle(self) -> None:
        reader, queued = hiredis.Reader(notEnoughData=...), None
        while data := self._received():
            reader.feed(data)
            while (words := reader.gets()) is not ...:
                name = words[0].upper()
                if name == b"MULTI":
                    queued, reply = [], OK("OK")
                elif name == b"EXEC":
                    reply, queued = [self.server.answer(each) for each in queued or ()], None
                elif queued is not None:
                    queued.append(words)
                    reply = OK("QUEUED")
                else:
                    reply = self.server.answer(words)
                self.request.sendall(packed(reply))

    def _received(self) -> bytes:
        try:
            return self.request.recv(65_536)  # type: ignore[no-any-return]
        except OSError:
            return b""


def packed(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, CommandError):
        return b"-%b\r\n" % str(reply).replace("\r", " ").replace("\n", " ").encode()
    if isinstance(reply, OK):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(packed, reply))
