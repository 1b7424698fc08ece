"""Runs a process that never outlives this one, even after SIGKILL.

The process is a child of a small watcher (this file, run as a script), which has the reading end of a pipe from us.
When we end, the pipe closes and the watcher ends the process. On Linux the kernel also ends it if the watcher
itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Seconds for a process to end before it is killed.
STOP_SECONDS: Final = 5.0


class ServerError(Exception):
    """A server was not found, or did not start; the text says what to do."""


class WatchedProcess:
    """A process that never outlives this one: a child of a watcher, which ends it when our end of a pipe closes.

    command: the program and its arguments. It is ended with `end_by`, and with SIGKILL if that does not help;
    processes that it has started are killed.
    folder: for its output; the watcher removes it if we end without `stop`.
    """

    def __init__(self, command: Sequence[str], folder: Path, end_by: signal.Signals = signal.SIGTERM) -> None:
        self._log = folder / "output.log"
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(end_by.value), str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which needs the server while it stops
        )
        assert self._watcher.stdout is not None
        line = self._watcher.stdout.readline()
        self._watcher.stdout.close()
        if not line:
            self.stop()
            raise ServerError(f"{command[0]} could not be run.")
        self.pid = int(line)

    @property
    def running(self) -> bool:
        """True if the process is still running."""
        return self._watcher.poll() is None

    @property
    def output(self) -> str:
        """The end of its output."""
        return self._log.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """End the process and return when it has ended."""
        assert self._watcher.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._watcher.stdin.write(b"stop")
        with contextlib.suppress(BrokenPipeError):
            self._watcher.stdin.close()
        self._watcher.wait()


def watch(end_by: int, folder: Path, command: Sequence[str]) -> int:
    """Run a command until it ends or our standard input closes; then make sure that it has ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing would be written to the pipe
    with (folder / "output.log").open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_end_with_parent,
            process_group=0,  # a new group, which its own children share
        )
    print(child.pid, flush=True)
    wanted = True
    while child.poll() is None:
        ready, _, _ = select.select([sys.stdin, woken], [], [])
        if sys.stdin in ready:
            wanted = os.read(sys.stdin.fileno(), 4) == b"stop"
            _end(child, end_by)
        else:
            os.read(woken, 64)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # no process left, or (macOS) only a zombie
        os.killpg(child.pid, signal.SIGKILL)
    if not wanted:
        shutil.rmtree(folder, ignore_errors=True)
    return child.wait()


def _end_with_parent() -> None:
    """Ask Linux to kill this process when the watcher ends, even by SIGKILL."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], end_by: int) -> None:
    child.send_signal(end_by)
    child.send_signal(signal.SIGCONT)  # else a paused process would not receive it
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(watch(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
