"""The lines about the stages: what runs, for how long all have run, and how long all usually take."""

from __future__ import annotations

import sys
import threading
import time

from durations import Durations, clock

#: Seconds between two lines about what runs, where no terminal shows them on one line.
EVERY = 30.0


class Progress:
    """Shows the stages as they begin, run and end, several at a time.

    names: those of all, in the order in which they begin. whole: the name under which the time of all is kept.
    """

    def __init__(self, names: list[str], durations: Durations, whole: str = "") -> None:
        self._names, self._durations, self._whole = names, durations, whole
        self._running: dict[str, tuple[float, str]] = {}
        self._printing = threading.RLock()
        self._began = self._shown = time.monotonic()

    def begin(self, name: str) -> None:
        """Show that a stage begins."""
        with self._printing:
            self._running[name] = (time.monotonic(), "")
            usual = self._durations.usual(name)
            place = f"[{self._names.index(name) + 1}/{len(self._names)}]"
            self._print(f"== {place} {name}{f' (usually {clock(usual)})' if usual else ''}")

    def tell(self, name: str, detail: str) -> None:
        """Keep how far a stage is, for the next line."""
        with self._printing:
            self._running[name] = (self._running[name][0], detail)

    def tick(self) -> None:
        """Show what runs: on a terminal always, elsewhere now and then."""
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
        """Show what came of a stage. passed: None = that is not known yet."""
        with self._printing:
            seconds = time.monotonic() - self._running.pop(name)[0]
            if passed:
                self._durations.record(name, seconds)
            said = {True: "passed", False: "FAILED", None: "ended"}[passed]
            self._print(f"-- {said} in {clock(seconds)}: {name}: {detail}")

    def end_all(self) -> None:
        """Keep how long all of them took."""
        if self._whole:
            self._durations.record(self._whole, time.monotonic() - self._began)

    def _print(self, line: str) -> None:
        erased = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(f"{erased}{line}", flush=True)
