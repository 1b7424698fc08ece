"""The demo's output: for a terminal of 80 to 100 columns, and as plain lines for a file."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

WIDTH: Final = 96
_TTY: Final = sys.stdout.isatty()
_COLOURS: Final = {"bold": "1", "dim": "2", "red": "1;31", "green": "32"}


def paint(text: str, colour: str) -> str:
    """Return the text in a colour, if the output is a terminal with colours."""
    if not _TTY or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def say(text: str = "") -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)


def heading(text: str) -> None:
    """Print the title of a part."""
    say()
    say(paint(text, "bold"))


def fact(name: str, text: str) -> None:
    """Print a name and its value."""
    say(f"  {name:<12}{text}")


def note(text: str) -> None:
    """Print a remark."""
    say(paint(f"  {text}", "dim"))


def verdict(agrees: bool) -> str:
    """Return yes or NO, for the end of a line."""
    return paint("yes", "green") if agrees else paint("NO", "red")


class Table:
    """Lines under a header, each with a last column that says whether it agrees.

    columns: the width of each by its title; a negative width aligns the text left.
    """

    def __init__(self, columns: Mapping[str, int]) -> None:
        self._widths = list(columns.values())
        header = f"  {self._line(list(columns))}  agrees"
        say(paint(header, "bold"))
        say("  " + "-" * (len(header) - 2))

    def group(self, title: str, remark: str = "") -> None:
        """Print a title for the next lines."""
        say(f"  {paint(title, 'bold')}  {paint(remark, 'dim')}".rstrip())

    def row(self, *cells: object, agrees: bool) -> None:
        """Print a line and whether it agrees."""
        texts = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
        say(f"  {self._line(texts)}  {verdict(agrees)}")

    def _line(self, texts: Sequence[str]) -> str:
        pairs = zip(texts, self._widths, strict=True)
        return "  ".join(f"{text:<{-width}}" if width < 0 else f"{text:>{width}}" for text, width in pairs)


class Progress:
    """A progress bar in a terminal, elsewhere lines at intervals. Use it in `with`."""

    BAR: Final = 24
    #: Seconds between two lines if there is no terminal.
    LINE_SECONDS: Final = 5.0

    def __init__(self) -> None:
        self._last_line = time.monotonic()

    def show(self, share: float, text: str) -> None:
        """Show the progress: a share from 0 to 1."""
        share = min(max(share, 0.0), 1.0)
        if _TTY:
            filled = round(self.BAR * share)
            line = f"  [{'#' * filled}{'.' * (self.BAR - filled)}] {share:4.0%}  {text}"
            width = min(WIDTH, shutil.get_terminal_size().columns - 1)  # a line that wraps cannot be overwritten
            print(f"\r{line[:width]:<{width}}", end="", flush=True)
        elif share >= 1 or time.monotonic() - self._last_line >= self.LINE_SECONDS:
            self._last_line = time.monotonic()
            say(f"  {share:4.0%}  {text}")

    def close(self) -> None:
        """End the line."""
        if _TTY:
            say()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
