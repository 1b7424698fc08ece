"""Starts and stops a PostgreSQL of the tests' own: a folder, a free port, no password, nothing kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from example_project.redis_server import HOST, free_port
from example_project.watched_process import ServerError, WatchedProcess

START_SECONDS = 30.0
#: The server rejects to run as root, so root runs it as the user that Debian's package brings.
ACCOUNT = "postgres"


def find_programs() -> Path | None:
    """The folder that holds `initdb` and `postgres`, the newest if there are several; `None` if there is none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return max(folders, key=lambda folder: float(folder.parent.name), default=None)


@contextlib.contextmanager
def postgres_url() -> Iterator[str]:
    """The address of a server that runs for as long as the block lasts. ServerError if it does not start."""
    programs = find_programs()
    if programs is None:
        raise ServerError("PostgreSQL is not installed (apt-get install postgresql).")
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        folder = Path(name)
        if os.getuid() == 0:
            shutil.chown(folder, ACCOUNT)
        data = folder / "data"
        initdb = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        done = subprocess.run(unprivileged(ACCOUNT, *initdb), capture_output=True, text=True, cwd=folder)
        if done.returncode:
            raise ServerError(f"initdb failed:\n{done.stdout}{done.stderr}")
        port = free_port()
        options = [f"-cunix_socket_directories={folder}", f"-clisten_addresses={HOST}", f"-cport={port}"]
        options += ["-cfsync=off", "-csynchronous_commit=off", "-cfull_page_writes=off"]
        # By SIGINT it shuts down at once; by SIGTERM it would wait for its clients to leave.
        server = WatchedProcess(
            unprivileged(ACCOUNT, programs / "postgres", "-D", data, *options), folder, signal.SIGINT
        )
        try:
            _wait_until_it_answers(server, port)
            yield f"postgresql://postgres@{HOST}:{port}/postgres"
        finally:
            server.stop()


def unprivileged(account: str, *command: object) -> list[str]:
    """The command as this user runs it, where we are root."""
    words = [str(word) for word in command]
    if os.getuid() != 0:
        return words
    # The watcher's wish that the server ends with it is lost when the user changes, so it is renewed here.
    change = ["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups", "--pdeathsig=SIGKILL"]
    return [*change, "--", *words]


def _wait_until_it_answers(server: WatchedProcess, port: int) -> None:
    ssl_request = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"  # the cheapest question; the answer is one letter
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.running:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(ssl_request)
            if connection.recv(1) in (b"S", b"N"):
                return
        time.sleep(0.02)
    raise ServerError(f"PostgreSQL did not answer on port {port}:\n{server.output}")
