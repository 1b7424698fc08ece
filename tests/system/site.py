"""A site run by gunicorn with two workers, on the database of the tests."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from example_project.redis_server import HOST, WatchedProcess, free_port

from .load import Client

WORKERS = 2
START_SECONDS = 120.0
#: So many connections are opened at most to find enough on each worker: which one takes a connection is chance.
MAX_CONNECTIONS = 1_000
PROJECT = Path(__file__).resolve().parents[2]


def wait_until(reached: Callable[[], object], seconds: float = START_SECONDS) -> None:
    """Wait until something is true; what cannot be reached yet is not."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if reached():
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def environment_of(**variables: str) -> dict[str, str]:
    """Variables of processes of a site, beside those of this one."""
    return {"DJANGO_SETTINGS_MODULE": "tests.system.settings", "PYTHONPATH": str(PROJECT), **variables}


@contextlib.contextmanager
def running(
    folder: Path, *command: str, is_ready: Callable[[], object] = lambda: True, **variables: str
) -> Iterator[WatchedProcess]:
    """Run Python with these arguments, from when it is ready on. Its output is shown with a test that fails."""
    environment = environment_of(**variables).items()
    process = WatchedProcess(
        ["env", *(f"{name}={value}" for name, value in environment), sys.executable, *command], folder
    )

    def is_ready_or_ended() -> object:
        assert process.running, process.output
        return is_ready()

    try:
        wait_until(is_ready_or_ended)
        yield process
    finally:
        process.stop()
        print(process.output)


class Site:
    """A running site.

    folder: for its output. environment: variables for it beside those of this process. options: further ones of
    gunicorn. application: the module of the WSGI application.
    """

    def __init__(self, folder: Path, environment: dict[str, str], application: str, options: tuple[str, ...]) -> None:
        self.workers: frozenset[int] = frozenset()
        self._environment = environment
        self._port = free_port()
        server = f"--bind {HOST}:{self._port} --workers {WORKERS} --threads 16 --keep-alive 75 --no-control-socket"
        command = ("-m", "gunicorn", application, *server.split(), *options)
        self._clients: list[Client] = []
        self._stack = contextlib.ExitStack()
        self._process = self._stack.enter_context(
            running(folder, *command, is_ready=self._has_workers, **self._environment)
        )
        self.disconnect()

    @property
    def output(self) -> str:
        """The end of what gunicorn and the site have printed."""
        return self._process.output

    def connect(self, count: int, path: str) -> list[Client]:
        """So many clients, an equal number on each worker, in turn, once both know of a rule for this path."""
        found: dict[int, list[Client]] = {worker: [] for worker in self.workers}
        for _ in range(MAX_CONNECTIONS):
            client = self.new_client()
            found[client.process].append(client)
            if all(len(clients) >= count / WORKERS for clients in found.values()):
                self._wait_for_rule(path, [clients[0] for clients in found.values()])
                return [client for clients in zip(*found.values(), strict=False) for client in clients][:count]
        raise AssertionError(f"{MAX_CONNECTIONS} connections were not enough for {count} on both workers.")

    def disconnect(self) -> None:
        """Close the connections of all clients."""
        while self._clients:
            self._clients.pop().close()

    def stop(self) -> None:
        """End all processes of the site."""
        self.disconnect()
        self._stack.close()

    def new_client(self) -> Client:
        """A client on whichever worker takes its connection."""
        client = Client(self._port)
        self._clients.append(client)
        return client

    def _wait_for_rule(self, path: str, clients: Iterable[Client]) -> None:
        """A process learns of the first rule for a path within VERSION_CHECK_INTERVAL, not at once."""
        for client in clients:
            wait_until(lambda client=client: client.get(path, "192.0.2.1").quota is not None)  # type: ignore[misc]

    def _has_workers(self) -> bool:
        """Whether both answer; one that answers already is not to keep the other one from starting."""
        self.workers |= {self.new_client().process}
        return len(self.workers) == WORKERS
