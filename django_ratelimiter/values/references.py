"""References of rejections: `RULE#DIGEST`, the rule and the start of the caller's digest in the names of keys.

A response to a rejected request bears one, and so do the line of the log and the list of recent rejections. It costs
nothing: it is cut from what is known. A customer may read it out: case does not matter, nor do letters that look alike.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: Characters of the digest: 48 bits, which tell a rule's callers apart.
DIGITS: Final = 8

_REFERENCE: Final = re.compile(rf"([\w.:-]+)#([\w-]{{{DIGITS}}})", re.ASCII)
#: What is taken for another when it is read out or typed.
_ALIKE: Final = str.maketrans({"l": "1", "i": "1", "o": "0", "_": "-"})


class Reference(NamedTuple):
    """The slug of the rule that rejected, and how the caller's digest begins."""

    rule: str
    start: str

    def is_of(self, digest: str) -> bool:
        """Return whether this digest begins like it, as far as people tell characters apart."""
        return _folded(digest[:DIGITS]) == _folded(self.start)


def reference_of(rule: str, digest: str) -> str:
    """Return the reference of a rejection by this rule of the caller with this digest."""
    return f"{rule}#{digest[:DIGITS]}"


def parse_reference(text: str) -> Reference | None:
    """Return the reference that this text is; `None` if it is none."""
    match = _REFERENCE.fullmatch("".join(text.split()))
    return Reference(match[1], match[2]) if match else None


def _folded(text: str) -> str:
    return text.lower().translate(_ALIKE)
