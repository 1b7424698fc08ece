"""The lines about the stages: which of how many, for how long it has run, and how long it usually takes."""

from __future__ import annotations

import sys
import time

from durations import Durations, clock

#: Seconds between two lines about a stage that runs, where no terminal shows them on one line.
EVERY = 30.0


class Progress:
    """Shows the stages as they begin, run and end. names: those of all, in their order."""

    def __init__(self, names: list[str], durations: Durations) -> None:
        self._names, self._durations = names, durations
        self._number = 0
        self._began = self._shown = 0.0

    def begin(self, name: str) -> None:
        """Show that the next stage begins."""
        self._number += 1
        self._began = self._shown = time.monotonic()
        print(f"\n== {self._place} {name}{self._estimate(name)}", flush=True)

    def tick(self, name: str, detail: str = "") -> None:
        """Show that the stage still runs: on a terminal always, elsewhere now and then."""
        now = time.monotonic()
        usual = self._durations.usual(name)
        line = f"{self._place} {clock(now - self._began)}{f' of usually {clock(usual)}' if usual else ''}{detail}"
        if sys.stdout.isatty():
            print(f"\r\x1b[K   {line}", end="", flush=True)
        elif now - self._shown >= EVERY:
            self._shown = now
            print(f"   {line}", flush=True)

    def end(self, name: str, passed: bool, detail: str) -> None:
        """Show what came of the stage."""
        seconds = time.monotonic() - self._began
        if passed:
            self._durations.record(name, seconds)
        erased = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(f"{erased}-- {'passed' if passed else 'FAILED'} in {clock(seconds)}: {detail}", flush=True)

    @property
    def _place(self) -> str:
        return f"[{self._number}/{len(self._names)}]"

    def _estimate(self, name: str) -> str:
        """Return how long the stage usually takes, and with it all that are still to come."""
        usual, rest = self._durations.usual(name), self._names[self._number - 1 :]
        if usual is None:
            return ""
        whole = sum(self._durations.usual(each) or 0.0 for each in rest)
        return f" (usually {clock(usual)}{f'; {clock(whole)} to the end of all' if len(rest) > 1 else ''})"
