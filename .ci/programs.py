"""Starts programs side by side, with a log each, and waits for all of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from stages import ROOT, Command


def run_together(commands: list[tuple[Command, Path]], tick: Callable[[], None]) -> list[int]:
    """Return the exit codes of commands that run side by side, each with a log, after all have ended.

    tick: called about once a second. If it raises an exception, such as an interrupt, the programs are ended.
    """
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, log in commands:
            with log.open("wb") as output:
                running.append(_start(command, output.fileno()))
        while any(process.poll() is None for process in running):
            tick()
            _wait(running, seconds=1.0)
    except BaseException:  # the terminal has sent an interrupt to them as well
        for process in running:
            _end(process)
        raise
    return [process.returncode for process in running]


def _start(command: Command, output: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **command.environment}
    # A file, not a pipe: a server that a test left running would keep a pipe open.
    return subprocess.Popen(
        command.words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )


def _wait(running: list[subprocess.Popen[bytes]], *, seconds: float) -> None:
    """Wait until one of them has ended, or for some seconds."""
    first = next((process for process in running if process.poll() is None), None)
    if first is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(timeout=seconds)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a program that was interrupted, and kill it if it does not end."""
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.terminate()
