"""Under real servers: leases end with the response, the client or the process; queues hold requests, not the server."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, Limit, Verdict
from django_ratelimiter.identity import digest
from example_project.middleware import PROCESS_HEADER
from example_project.redis_server import HOST, free_port

from ..making import make_rule
from .load import get
from .site import running, wait_until

#: How long views take that nobody waits for, in milliseconds.
FOREVER = 300_000
#: Seconds in which what a client has left must be noticed.
SOON = 120.0

GUNICORN = "-m gunicorn tests.system.wsgi --workers 1 --threads 8 --no-control-socket --bind"
UVICORN = "-m uvicorn tests.system.asgi:application --lifespan off --log-level warning"


class Server:
    """A server with one process, and the tests' slow views. kind: gunicorn, uvicorn or uvicorn behind synchronous."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.port = free_port()
        variables = {"SYSTEM_URLCONF": "tests.system.slow_urls"}
        if kind == "uvicorn":
            variables["SYSTEM_ALL_ASYNC"] = "1"
        if kind == "gunicorn":
            arguments = [*GUNICORN.split(), f"{HOST}:{self.port}"]
        else:
            arguments = [*UVICORN.split(), "--host", HOST, "--port", str(self.port)]
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(running(folder, *arguments, is_ready=lambda: self.get("/hello/"), **variables))
        self.stop = self._stack.close

    def get(self, path: str) -> http.client.HTTPResponse:
        return get(self.port, path)

    def status(self, path: str) -> int | None:
        """`None` if there was no answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get(path).status
        return None

    @contextlib.contextmanager
    def asking(self, path: str) -> Iterator[socket.socket]:
        """Ask, and leave with the end of the block whatever has been answered."""
        with socket.create_connection((HOST, self.port), SOON) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            yield client


def read_until(client: socket.socket, wanted: bytes) -> None:
    received = b""
    while wanted not in received:
        part = client.recv(100_000)
        assert part, received[-500:]
        received = received[-len(wanted) :] + part if len(received) > 10_000 else received + part


@pytest.fixture(scope="module")
def _servers(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    started: dict[str, Server] = {}

    def start(kind: str) -> Server:
        if kind not in started:
            started[kind] = Server(kind, tmp_path_factory.mktemp("server"))
        return started[kind]

    yield start
    for server in started.values():
        server.stop()


@pytest.fixture
def serve(_servers: Callable[[str], Server]) -> Callable[..., Server]:
    """A running server that knows a rule for its slow views: `serve(kind, algorithm, **fields of the limit)`."""

    def start(kind: str, algorithm: str, **limit: Any) -> Server:
        make_rule("slow", 1, None, algorithm, limit, path="/s", path_kind="prefix")
        server = _servers(kind)
        wait_until(lambda: server.get("/slow/0/").headers["RateLimit"] is not None)
        wait_until(is_free)  # the end of a response comes shortly after the last that is sent of it
        return server

    return start


def asked(algorithm: str = "concurrency", now_us: int | None = None, **limit: Any) -> Verdict:
    """What the engine would say to another request; asked from here, so that it leaves no trace."""
    return get_engine().peek([Charge(f"slow:{digest('')}", Limit(1, 3_600, algorithm, **limit))], now_us)[0]


def is_held() -> bool:
    return not asked().allowed


def is_free() -> bool:
    return asked().allowed


STREAMS = [
    ("gunicorn", f"/stream/{FOREVER}/"),
    ("uvicorn", f"/stream/natively/{FOREVER}/"),
    ("uvicorn behind synchronous", f"/stream/natively/{FOREVER}/"),
]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("gunicorn", f"/slow/{FOREVER}/"),
        ("uvicorn", f"/slow/{FOREVER}/"),
        ("uvicorn", f"/slow/natively/{FOREVER}/"),
        ("uvicorn behind synchronous", f"/slow/natively/{FOREVER}/"),
        *STREAMS,
    ],
)
def test_a_lease_ends_when_the_client_leaves(serve: Callable[..., Server], kind: str, path: str) -> None:
    """Before a response, or within a stream."""
    server = serve(kind, "concurrency", window_seconds=3_600)
    with server.asking(path) as client:
        if "stream" in path:
            read_until(client, b"part")
            assert is_held()
        wait_until(is_held, SOON)
    if path.startswith("/slow/3"):  # a thread cannot be stopped, and holds on as long as it works
        server.get("/end/")
    wait_until(is_free, SOON)


@pytest.mark.parametrize(("kind", "path"), STREAMS)
def test_a_lease_ends_with_a_stream(serve: Callable[..., Server], kind: str, path: str) -> None:
    server = serve(kind, "concurrency", window_seconds=3_600)
    with server.asking(path) as client:
        read_until(client, b"part")
        assert is_held()
        server.get("/end/")
        read_until(client, b"0\r\n\r\n")
    wait_until(is_free, SOON)


def test_the_lease_of_a_killed_process_ends_by_itself(serve: Callable[..., Server]) -> None:
    server = serve("gunicorn", "concurrency", window_seconds=3_600)
    worker = int(server.get("/hello/").headers[PROCESS_HEADER])
    with server.asking(f"/slow/{FOREVER}/"):
        wait_until(is_held, SOON)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: server.status("/hello/") and server.get("/hello/").headers[PROCESS_HEADER] != str(worker))
    held = asked()
    assert held.retry_after is not None
    ends_us = held.at_us + round(held.retry_after * 1_000_000)
    assert [asked(now_us=ends_us + later).allowed for later in (-1_000, 1_000)] == [False, True]


def test_an_event_loop_goes_on_while_it_holds_a_request(serve: Callable[..., Server]) -> None:
    server = serve("uvicorn", "leaky_bucket", window_seconds=3_600, burst=5)
    before = asked("leaky_bucket", burst=5).remaining
    with server.asking("/slow/natively/0/"):
        wait_until(lambda: asked("leaky_bucket", burst=5).remaining < before, SOON)
        assert [server.status("/hello/") for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn behind synchronous"])
def test_rejected_upload_reads_its_429_from_a_server_that_reads_bodies(kind: str, serve: Callable[..., Server]) -> None:
    """A client that sends all of it before it reads; more than the buffers between them hold."""
    server, size = serve(kind, "fixed_window", window_seconds=86_400), 20_000_000
    with server.asking("/slow/0/") as client:
        read_until(client, b"HTTP/1.1")
    with socket.create_connection((HOST, server.port), SOON) as client:
        client.sendall(f"GET /slow/0/ HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {size}\r\n\r\n".encode())
        client.sendall(bytes(size))
        read_until(client, b"HTTP/1.1 429")
