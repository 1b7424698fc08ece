"""A site run by gunicorn with two workers, on the database of the tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from example_project.redis_server import HOST, WatchedProcess, free_port

from .load import Client

WORKERS = 2
START_SECONDS = 60.0
#: So many connections are opened at most to find enough on each worker: which one takes a connection is chance.
MAX_CONNECTIONS = 1_000
PROJECT = Path(__file__).resolve().parents[2]


class Site:
    """A running site.

    folder: for its output, and for what `engines` reads. environment: variables for it beside those of this process.
    options: further ones of gunicorn. application: the module of the WSGI application.
    """

    def __init__(self, folder: Path, environment: dict[str, str], application: str, options: tuple[str, ...]) -> None:
        self.folder = folder
        self.workers: frozenset[int] = frozenset()
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "tests.system.settings",
            "PYTHONPATH": str(PROJECT),
            "SYSTEM_FAULTS": str(folder),
            **environment,
        }
        self._port = free_port()
        server = f"--bind {HOST}:{self._port} --workers {WORKERS} --threads 16 --keep-alive 75 --no-control-socket"
        command = ["env", *(f"{name}={value}" for name, value in self._environment.items())]
        command += [sys.executable, "-m", "gunicorn", application, *server.split(), *options]
        self._clients: list[Client] = []
        self._process = WatchedProcess(command, folder)
        try:
            self._wait_for_workers()
        except BaseException:
            self.stop()
            raise

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

    def manage(self, *arguments: str) -> str:
        """Run a management command with the settings of the site; what it printed."""
        command = [sys.executable, "-m", "django", *arguments]
        done = subprocess.run(command, env=os.environ | self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def stop(self) -> None:
        """End all processes of the site."""
        self.disconnect()
        self._process.stop()

    def new_client(self) -> Client:
        """A client on whichever worker takes its connection."""
        client = Client(self._port)
        self._clients.append(client)
        return client

    def _wait_for_rule(self, path: str, clients: Iterable[Client]) -> None:
        """A process learns of the first rule for a path within VERSION_CHECK_INTERVAL, not at once."""
        deadline = time.monotonic() + START_SECONDS
        for client in clients:
            while client.get(path, "192.0.2.1").quota is None:
                if time.monotonic() > deadline:
                    raise AssertionError(f"Worker {client.process} never met a rule for {path}.")
                time.sleep(0.02)

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(self.workers) < WORKERS:
            if time.monotonic() > deadline or not self._process.running:
                raise AssertionError(f"gunicorn did not start:\n{self.output}")
            with contextlib.suppress(OSError):
                self.workers |= {self.new_client().process}
            time.sleep(0.02)  # a worker that answers already is not to keep the other one from starting
        self.disconnect()
