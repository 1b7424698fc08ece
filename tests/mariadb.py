"""Starts and stops a MariaDB of the tests' own: a folder, a free port, no password, nothing kept."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from example_project.redis_server import HOST, free_port
from example_project.watched_process import ServerError, WatchedProcess

from .postgres import unprivileged

START_SECONDS = 60.0
#: The server rejects to run as root, so root runs it as the user that Debian's package brings.
ACCOUNT = "mysql"


def has_server() -> bool:
    """Whether there is a MariaDB that could be started."""
    return _find("mariadbd") is not None and _find("mariadb-install-db") is not None


def missing() -> str | None:
    """What is missing on this machine for the tests to run on MariaDB; `None` = nothing."""
    if not has_server():
        return "no mariadbd found; apt-get install mariadb-server"
    importlib.invalidate_caches()
    if importlib.util.find_spec("MySQLdb") is None:
        return "no driver; apt-get install libmariadb-dev gcc pkg-config, then uv sync --group mariadb"
    return None


@contextlib.contextmanager
def mariadb_url() -> Iterator[str]:
    """The address of a server that runs for as long as the block lasts. ServerError if it does not start."""
    lacking = missing()
    if lacking:
        raise ServerError(f"The tests cannot run on MariaDB: {lacking}.")
    with tempfile.TemporaryDirectory(prefix="mariadb-") as name:
        folder = Path(name)
        if os.getuid() == 0:
            shutil.chown(folder, ACCOUNT)
        data = f"--datadir={folder / 'data'}"
        install = [_find("mariadb-install-db"), "--no-defaults", data, "--auth-root-authentication-method=normal"]
        done = subprocess.run(unprivileged(ACCOUNT, *install), capture_output=True, text=True, cwd=folder)
        if done.returncode:
            raise ServerError(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")
        port = free_port()
        options = [data, f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}", f"--tmpdir={folder}"]
        options += [f"--bind-address={HOST}", f"--port={port}", "--skip-name-resolve", "--character-set-server=utf8mb4"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite", "--innodb-flush-method=nosync"]
        server = WatchedProcess(unprivileged(ACCOUNT, _find("mariadbd"), "--no-defaults", *options), folder)
        try:
            _wait_until_it_answers(server, port)
            yield f"mysql://root@{HOST}:{port}/mysql"
        finally:
            server.stop()


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _wait_until_it_answers(server: WatchedProcess, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.running:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1) as connection:
            if connection.recv(1):  # it speaks first
                return
        time.sleep(0.02)
    raise ServerError(f"MariaDB did not answer on port {port}:\n{server.output}")
