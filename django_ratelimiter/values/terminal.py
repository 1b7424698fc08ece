"""Text of others on a terminal or in a log: it does not control the terminal, begin a line or command a CI service."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

#: Control characters, separators of lines, what changes the direction of text, and halves of UTF-16 pairs.
CONTROLS: Final = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"

_CONTROL: Final = re.compile(f"[{CONTROLS}]")

#: Those, and the start of a command to a CI service: "##[…]" or "##vso[…]" anywhere in a line, "::" at its start.
_HARMFUL: Final = re.compile(rf"[{CONTROLS}]|#(?=#(?:vso|teamcity)?\[)")
_COMMAND: Final = re.compile(r"\A(\s*):(?=:)")
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def without_controls(text: str, harmful: re.Pattern[str] = _CONTROL) -> str:
    """Return a text of callers for a page or a file, as one line in which such characters are written as in JSON."""
    return harmful.sub(lambda found: _SHORT.get(found[0], f"\\u{ord(found[0]):04x}"), text)


def visible(text: str) -> str:
    """Return a text as one line in which such characters are written as in JSON: line breaks, escapes and the like."""
    text = without_controls(text, _HARMFUL)
    return _COMMAND.sub(r"\1\\u003a", text)


class Table(NamedTuple):
    """Rows of a table, the head first. A row with fewer cells than the others is a note."""

    rows: Sequence[Sequence[str]]

    @property
    def columns(self) -> list[bool]:
        """The columns: true = of numbers, aligned right."""
        number = max(map(len, self.rows), default=0)
        whole = [row for row in self.rows if len(row) == number]
        return [all(row[place][:1].isdigit() or not row[place] for row in whole[1:]) for place in range(number)]

    def lines(self) -> Iterator[str]:
        """Yield the rows as plain text. Nothing is cut off."""
        columns, rows = self.columns, [[*map(visible, row)] for row in self.rows]
        whole = [row for row in rows if len(row) == len(columns)]
        widths = [max(len(row[place]) for row in whole) for place in range(len(columns))]
        for row in rows:
            if len(row) < len(columns):
                yield f"  {row[0]}"
                continue
            shown = zip(row, widths, columns, strict=True)
            cells = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in shown]
            yield f"  {'  '.join(cells)}".rstrip()


def on_terminal(parts: Iterable[str | Table]) -> str:
    """Return lines and tables for a terminal."""
    return "\n".join(visible(line) for part in parts for line in ([part] if isinstance(part, str) else part.lines()))
