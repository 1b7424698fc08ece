"""The lines about the stages: which ones run, the time so far, and the usual time of all."""

from __future__ import annotations

import sys
import threading
import time

from durations import Durations, clock

#: Seconds between two lines about running stages, if the output is not a terminal.
EVERY = 30.0


class Progress:
    """Shows the stages when they begin, run and end, several at a time.

    names: of all stages, in the order in which they begin. whole: the name for the time of all in `Durations`.
    """

    def __init__(self, names: list[str], durations: Durations, whole: str = "") -> None:
        self._names, self._durations, self._whole = names, durations, whole
        self._running: dict[str, tuple[float, str]] = {}
        self._printing = threading.RLock()
        self._began = self._shown = time.monotonic()

    def begin(self, name: str) -> None:
        """Show the beginning of a stage."""
        with self._printing:
            self._running[name] = (time.monotonic(), "")
            usual = self._durations.usual(name)
            place = f"[{self._names.index(name) + 1}/{len(self._names)}]"
            self._print(f"== {place} {name}{f' (usually {clock(usual)})' if usual else ''}")

    def tell(self, name: str, detail: str) -> None:
        """Store the progress of a stage, for the next line."""
        with self._printing:
            self._running[name] = (self._running[name][0], detail)

    def tick(self) -> None:
        """Show the running stages: on a terminal always, elsewhere at intervals."""
        now, usual = time.monotonic(), self._durations.usual(self._whole)
        with self._printing:
            told = "; ".join(f"{name.removeprefix('tests: ')}{detail}" for name, (_, detail) in self._running.items())
            line = f"   {clock(now - self._began)}{f' of usually {clock(usual)}' if usual else ''}: {told}"
            if sys.stdout.isatty():
                print(f"\r\x1b[K{line[:120]}", end="", flush=True)
            elif now - self._shown >= EVERY:
                self._shown = now
                print(line, flush=True)

    def end(self, name: str, passed: bool | None, detail: str) -> None:
        """Show the result of a stage. passed: None = not known yet."""
        with self._printing:
            seconds = time.monotonic() - self._running.pop(name)[0]
            if passed:
                self._durations.record(name, seconds)
            said = {True: "passed", False: "FAILED", None: "ended"}[passed]
            self._print(f"-- {said} in {clock(seconds)}: {name}: {detail}")

    def end_all(self) -> None:
        """Store the time of all stages."""
        if self._whole:
            self._durations.record(self._whole, time.monotonic() - self._began)

    def _print(self, line: str) -> None:
        erased = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(f"{erased}{line}", flush=True)
