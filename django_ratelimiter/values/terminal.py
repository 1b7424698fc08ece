"""Text of others on a terminal or in a log: it does not control the terminal, begin a line or command a CI service."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

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


def on_terminal(lines: Iterable[str]) -> str:
    """Return lines for a terminal."""
    return "\n".join(map(visible, lines))
