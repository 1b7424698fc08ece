"""Starts and stops a PostgreSQL or a MariaDB of the tests' own: a folder, a free port, no password, nothing kept."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from example_project.redis_server import HOST, free_port
from example_project.watched_process import ServerError, WatchedProcess

START_SECONDS = 120.0


def find_postgres() -> Path | None:
    """The folder that holds `initdb` and `postgres`, the newest if there are several; `None` if there is none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return max(folders, key=lambda folder: float(folder.parent.name), default=None)


@contextlib.contextmanager
def postgres_url() -> Iterator[str]:
    """The address of a server that runs for as long as the block lasts. ServerError if it does not start."""
    programs = find_postgres()
    if programs is None:
        raise ServerError("PostgreSQL is not installed (apt-get install postgresql).")
    with _folder("postgres") as folder:
        data = folder / "data"
        _run("postgres", folder, programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")
        port = free_port()
        options = [f"-cunix_socket_directories={folder}", f"-clisten_addresses={HOST}", f"-cport={port}"]
        options += ["-cfsync=off", "-csynchronous_commit=off", "-cfull_page_writes=off"]
        command = _unprivileged("postgres", programs / "postgres", "-D", data, *options)

        def answers(connection: socket.socket) -> bool:
            connection.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")  # for SSL, the cheapest: the answer is one letter
            return connection.recv(1) in (b"S", b"N")

        # By SIGINT it shuts down at once; by SIGTERM it would wait for its clients to leave.
        with _running(WatchedProcess(command, folder, signal.SIGINT), port, answers):
            yield f"postgresql://postgres@{HOST}:{port}/postgres"


def has_mariadb() -> bool:
    """Whether there is a MariaDB that could be started."""
    return None not in map(_find, ("mariadbd", "mariadb-install-db"))


def mariadb_lacks() -> str | None:
    """What is missing on this machine for the tests to run on MariaDB; `None` = nothing."""
    if not has_mariadb():
        return "no mariadbd found; apt-get install mariadb-server"
    importlib.invalidate_caches()
    if importlib.util.find_spec("MySQLdb") is None:
        return "no driver; apt-get install libmariadb-dev gcc pkg-config, then uv sync --group mariadb"
    return None


@contextlib.contextmanager
def mariadb_url() -> Iterator[str]:
    """The address of a server that runs for as long as the block lasts. ServerError if it does not start."""
    if lacking := mariadb_lacks():
        raise ServerError(f"The tests cannot run on MariaDB: {lacking}.")
    with _folder("mysql") as folder:
        data = f"--datadir={folder / 'data'}"
        _run(
            "mysql",
            folder,
            _find("mariadb-install-db"),
            "--no-defaults",
            data,
            "--auth-root-authentication-method=normal",
        )
        port = free_port()
        options = [data, f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}", f"--tmpdir={folder}"]
        options += [f"--bind-address={HOST}", f"--port={port}", "--skip-name-resolve", "--character-set-server=utf8mb4"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite", "--innodb-flush-method=nosync"]
        server = WatchedProcess(_unprivileged("mysql", _find("mariadbd"), "--no-defaults", *options), folder)
        with _running(server, port, lambda connection: bool(connection.recv(1))):  # it speaks first
            yield f"mysql://root@{HOST}:{port}/mysql"


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def _folder(account: str) -> Iterator[Path]:
    """A folder of the user that Debian's package brings: servers reject to run as root."""
    with tempfile.TemporaryDirectory(prefix=f"{account}-") as name:
        if os.getuid() == 0:
            shutil.chown(name, account)
        yield Path(name)


def _run(account: str, folder: Path, *command: object) -> None:
    done = subprocess.run(_unprivileged(account, *command), capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise ServerError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def _unprivileged(account: str, *command: object) -> list[str]:
    """The command as this user runs it, where we are root."""
    words = [str(word) for word in command]
    if os.getuid() != 0:
        return words
    # The watcher's wish that the server ends with it is lost when the user changes, so it is renewed here.
    change = ["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups", "--pdeathsig=SIGKILL"]
    return [*change, "--", *words]


@contextlib.contextmanager
def _running(server: WatchedProcess, port: int, answers: Callable[[socket.socket], bool]) -> Iterator[None]:
    deadline = time.monotonic() + START_SECONDS
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1) as connection:
                if answers(connection):
                    break
            if time.monotonic() > deadline or not server.running:
                raise ServerError(f"The database did not answer on port {port}:\n{server.output}")
            time.sleep(0.02)
        yield
    finally:
        server.stop()
