"""Several processes that decide at the same time; see `worker`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from .contest import HOUR

#: Seconds from an order to its start: long enough for all processes to read it.
NOTICE: Final = 0.03


class Workers:
    """Processes, each with its own contestants.

    names: of these contestants; empty = all. shifts: for each process, the seconds by which its clock is wrong.
    """

    def __init__(self, shifts: Sequence[float], names: Sequence[str] = (), seconds: int = HOUR) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", str(shift), str(seconds), *names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for shift in shifts
        ]
        self.names: list[str] = []
        self.failed: dict[str, str] = {}

    def __enter__(self) -> Workers:
        for process in self._processes:
            told = self._answer(process)
            self.names, self.failed = told["names"], told["failed"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            assert process.stdin
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def all(self, name: str, calls: int, callers: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Let all make this many calls at once, each for its own callers, and return their answers.

        Raises RuntimeError if one of them fails.
        """
        order = {"name": name, "calls": calls, "at": time.monotonic() + NOTICE}
        for process, mine in zip(self._processes, callers, strict=True):
            self._tell(process, order | {"callers": list(mine)})
        return self._sound([self._answer(process) for process in self._processes])

    def one(self, number: int, name: str, calls: int, callers: Sequence[int]) -> dict[str, Any]:
        """Let one of them make this many calls. Raises RuntimeError if it fails."""
        process = self._processes[number]
        self._tell(process, {"name": name, "calls": calls, "at": 0.0, "callers": list(callers)})
        return self._sound([self._answer(process)])[0]

    def _sound(self, answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return these answers, all of which were read. Raises RuntimeError if one has an error."""
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(answer["error"])
        return answers

    def _tell(self, process: subprocess.Popen[str], order: dict[str, Any]) -> None:
        assert process.stdin
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"A process that should decide has ended with code {process.wait()}.")
        answer: dict[str, Any] = json.loads(line)
        return answer
