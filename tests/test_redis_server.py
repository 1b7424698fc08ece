"""The server that demo and tests start: it answers, survives what it should, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from example_project import redis_server as module
from example_project.redis_server import RedisServer
from example_project.watched_process import ServerError, WatchedProcess

pytestmark = pytest.mark.once

Start = Callable[..., RedisServer]


def _client(server: RedisServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def _ends(pid: int) -> bool:
    """Whether a process is gone within a minute (a zombie whose parent has not looked yet is gone too)."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    """A program that has started a server, in a thread that has ended; it prints the server's pids and folder."""
    code = (
        "import sys, threading\n"
        "from example_project.redis_server import RedisServer\n"
        "server = RedisServer()\n"
        "thread = threading.Thread(target=server.start)\n"
        "thread.start(); thread.join()\n"
        "print(server.pid, server._watched._watcher.pid, server._folder.name, flush=True)\n"
        "sys.stdin.read()  # until it is killed, or our end is closed\n"
    )
    root = Path(module.__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("keep_data", [True, False])
def test_it_starts_again_on_the_same_port(redis_server: Start, end: str, keep_data: bool) -> None:
    server = redis_server(keep_data=keep_data)
    url, pid = server.url, server.pid
    with _client(server) as client:
        client.set("key", "value")
        getattr(server, end)()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert (server.url, server.pid != pid) == (url, True)
        assert client.get("key") == (b"value" if keep_data else None)


def test_nothing_is_left_after_an_error() -> None:
    def fail() -> None:
        with RedisServer() as server:
            assert server._folder
            seen.extend((server, server.pid, Path(server._folder.name)))
            raise ZeroDivisionError

    seen: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    server, pid, folder = seen
    assert _ends(pid)
    assert not folder.exists()
    with pytest.raises(ServerError, match="stopped"):
        server.pid  # noqa: B018


@pytest.mark.parametrize("killed", ["owner", "watcher"])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process together with its parent")
def test_nothing_is_left_when_owner_or_watcher_is_killed(program: subprocess.Popen[str], killed: str) -> None:
    assert program.stdout
    server, watcher, folder = program.stdout.readline().split()
    os.kill(program.pid if killed == "owner" else int(watcher), signal.SIGKILL)
    assert _ends(int(server))
    assert _ends(int(watcher))
    assert killed == "watcher" or not Path(folder).exists()


def test_nothing_is_left_of_what_a_watched_process_started(tmp_path: Path) -> None:
    process = WatchedProcess(["/bin/sh", "-c", "sleep 1000 & echo $!"], tmp_path)
    assert _ends(process.pid)
    process.stop()
    assert _ends(int(process.output))


def test_a_port_that_is_taken_is_an_error(redis_server: Start) -> None:
    taken = redis_server().port
    with pytest.raises(ServerError, match=rf"(?s)port {taken}.*Address already in use"):
        redis_server(taken)
