"""Under real servers: leases end with the response, the client or the process; queues hold requests, not the server."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
SOON = 20.0

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


def lease(window: float = 3_600) -> Verdict:
    """What the engine would say to another request; asked from here, so that it leaves no trace."""
    return get_engine().peek([Charge(f"slow:{digest('')}", Limit(1, window, "concurrency"))])[0]


def is_held() -> bool:
    return not lease().allowed


def is_free() -> bool:
    return lease().allowed


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("gunicorn", "/slow/1000/"),
        ("uvicorn", "/slow/1000/"),  # a thread cannot be stopped, and holds on as long as it works
        ("uvicorn", f"/slow/natively/{FOREVER}/"),
        ("uvicorn behind synchronous", f"/slow/natively/{FOREVER}/"),
        ("gunicorn", f"/stream/{FOREVER}/"),
        ("uvicorn", f"/stream/natively/{FOREVER}/"),
        ("uvicorn behind synchronous", f"/stream/natively/{FOREVER}/"),
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
    wait_until(is_free, SOON)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("gunicorn", "/stream/500/"),
        ("uvicorn", "/stream/natively/500/"),
        ("uvicorn behind synchronous", "/stream/natively/500/"),
    ],
)
def test_a_lease_ends_with_a_stream(serve: Callable[..., Server], kind: str, path: str) -> None:
    server = serve(kind, "concurrency", window_seconds=3_600)
    with server.asking(path) as client:
        read_until(client, b"part")
        assert is_held()
        read_until(client, b"\r\n0\r\n\r\n")
    wait_until(is_free, SOON)


def test_the_lease_of_a_killed_process_ends_by_itself(serve: Callable[..., Server]) -> None:
    server = serve("gunicorn", "concurrency", window_seconds=4)
    [worker] = {int(server.get("/hello/").headers[PROCESS_HEADER])}

    with server.asking(f"/slow/{FOREVER}/"):
        wait_until(lambda: not lease(4).allowed, SOON)
        os.kill(worker, signal.SIGKILL)
        held = lease(4)
        assert held.retry_after is not None
        assert 0 < held.retry_after <= 4
        wait_until(lambda: lease(4).allowed, 10)
        assert lease(4).at_us >= held.at_us + held.retry_after * 1_000_000
    wait_until(lambda: server.status("/slow/0/") == 200)
    assert int(server.get("/hello/").headers[PROCESS_HEADER]) != worker


def test_an_event_loop_goes_on_while_it_holds_requests(serve: Callable[..., Server]) -> None:
    server = serve("uvicorn", "leaky_bucket", window_seconds=0.4, burst=5)
    time.sleep(0.4 * 5)  # for the queue to be empty
    others = 0
    with ThreadPoolExecutor(5) as threads:
        asked = time.monotonic()
        answers = [threads.submit(lambda: (server.status("/slow/natively/0/"), time.monotonic())) for _ in range(5)]
        while not all(answer.done() for answer in answers):
            server.get("/hello/")
            others += 1
    statuses, ends = zip(*(answer.result() for answer in answers), strict=True)
    assert statuses == (200,) * 5
    for number, end in enumerate(sorted(ends)):
        assert end - asked >= 0.4 * number - 0.05
    assert others > 2 * 5, "one that stands still while it holds a request answers one other in between"


def test_a_synchronous_worker_rejects_what_would_have_to_wait(serve: Callable[..., Server]) -> None:
    server = serve("gunicorn", "leaky_bucket", window_seconds=5, burst=5)
    answers = [server.get("/slow/0/") for _ in range(3)]
    assert [answer.status for answer in answers] == [429] * 3
    assert {int(answer.headers["Retry-After"]) for answer in answers} <= {4, 5}
