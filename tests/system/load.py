"""Clients that keep their connection, and thus their worker, and send requests from threads."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

from example_project.middleware import PROCESS_HEADER
from example_project.redis_server import HOST

TIMEOUT_SECONDS = 120.0
#: How long a client of `Traffic` rests after each round: most tests wait for a moment to come, not for load.
REST_SECONDS = 0.05
#: A page that no rule of these tests is about.
FREE_PATH = "/hello/"


def get(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    """Ask once, on a connection of its own. Raises OSError if there is no answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
    with closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        response.read()
    return response


class Answer(NamedTuple):
    """What came back for one request.

    process: the worker that answered. quota: of the limit that decided, as told in RateLimit-Policy; `None` = no
    rule was met, or a failure policy decided. sent, answered: monotonic seconds.
    """

    path: str
    status: int
    process: int
    quota: int | None
    sent: float
    answered: float

    @property
    def admitted(self) -> bool:
        return self.status == 200


class Client:
    """One connection, kept open. `process` is the worker behind it."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
        self.process = self.get(FREE_PATH).process

    def get(self, path: str, address: str = "203.0.113.1") -> Answer:
        """Ask for a page as a client of this address."""
        sent = time.monotonic()
        self.connection.request("GET", path, headers={"X-Forwarded-For": address})
        response = self.connection.getresponse()
        response.read()
        policy = re.search(r";q=(\d+)", response.headers.get("RateLimit-Policy", ""))
        return Answer(
            path,
            response.status,
            int(response.headers[PROCESS_HEADER]),
            int(policy[1]) if policy else None,
            sent,
            time.monotonic(),
        )

    def close(self) -> None:
        self.connection.close()


def send(clients: Sequence[Client], path: str, count: int, address: str = "203.0.113.1") -> list[Answer]:
    """Send `count` requests, all clients at once, each client an equal share of them."""
    together = threading.Barrier(len(clients))

    def run(client: Client, share: int) -> list[Answer]:
        together.wait(TIMEOUT_SECONDS)
        return [client.get(path, address) for _ in range(share)]

    shares = [len(range(number, count, len(clients))) for number in range(len(clients))]
    with ThreadPoolExecutor(len(clients)) as threads:
        return [answer for answers in threads.map(run, clients, shares) for answer in answers]


class Traffic:
    """Requests for some paths in turn, from all clients, for as long as the block lasts."""

    def __init__(self, clients: Sequence[Client], paths: Sequence[str]) -> None:
        self.answers: list[Answer] = []
        self._clients = clients
        self._paths = paths
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(len(clients))
        self._running: list[Future[None]] = []

    def __enter__(self) -> Traffic:
        self._running = [self._threads.submit(self._run, client) for client in self._clients]
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._threads.shutdown()
        for client in self._running:
            client.result()

    def wait_for(self, enough: Callable[[list[Answer]], bool]) -> None:
        """Go on until the answers to requests sent from now on are enough."""
        begin, first = time.monotonic(), len(self.answers)
        while not enough([answer for answer in self.answers[first:] if answer.sent > begin]):
            if time.monotonic() - begin > TIMEOUT_SECONDS or any(client.done() for client in self._running):
                for client in self._running:
                    if client.done():
                        client.result()
                raise AssertionError(f"What was waited for did not come; the last answers: {self.answers[-8:]}")
            self._ended.wait(0.01)

    def since(self, moment: float) -> list[Answer]:
        """The answers so far to requests sent after this moment, in monotonic seconds."""
        return [answer for answer in self.answers if answer.sent > moment]

    def _run(self, client: Client) -> None:
        while not self._ended.is_set():
            for path in self._paths:
                self.answers.append(client.get(path))
            self._ended.wait(REST_SECONDS)
