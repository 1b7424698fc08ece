"""References of rejections: `RULE#DIGEST`, the rule and the start of the caller's digest in the names of keys.

The response to a rejected request contains it, and so do the log line and the list of recent rejections. It costs
nothing, because it is a part of known values. A caller may read it aloud: case does not matter, nor do letters that
look alike. Or the caller sends the whole response: the reference is found in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final, NamedTuple

from .bounds import MAX_TEXT

#: Characters of the digest: 48 bits, which distinguish a rule's callers.
DIGITS: Final = 8

#: Maximum number of possible references that are examined in a text.
MAX_CANDIDATES: Final = 10

_SLUG: Final = r"([\w.:-]{1,200})"
#: The whole text, with spaces where people pause.
_TYPED: Final = re.compile(rf"{_SLUG}\s*#\s*((?:[\w-]\s*){{{DIGITS}}})", re.ASCII)
#: A word in a text that is not part of an address.
_WITHIN: Final = re.compile(rf"(?<![\w.:/#-]){_SLUG}#([\w-]{{{DIGITS}}})(?![\w#-])", re.ASCII)
#: After the name of the field; in a text of one line, the line break after it may be lost.
_OF_FIELD: Final = re.compile(rf"X-RateLimit-Reference:\s*{_SLUG}#([\w-]{{{DIGITS}}})", re.ASCII | re.IGNORECASE)
_ADDRESS: Final = re.compile(r"://[^\s\"'<>]*")
#: "Reference:", or the same in another language.
_LABEL: Final = re.compile(r"(?:X-RateLimit-)?Reference\s*[:=]\s*|[^\W\d_]+\s*[:=]\s+", re.IGNORECASE)
#: Characters around a reference: quotes, brackets, and the end of a sentence.
_AROUND: Final = " \t\r\n\"'`()[]<>.,;:!?\u00ab\u00bb\u2039\u203a\u2018\u2019\u201a\u201c\u201d\u201e"
#: Characters that people confuse when they read or type.
_ALIKE: Final = str.maketrans({"l": "1", "i": "1", "o": "0", "_": "-"})


class Reference(NamedTuple):
    """The slug of the rule that rejected, as it was typed, and the start of the caller's digest."""

    rule: str
    start: str

    def is_of(self, digest: str) -> bool:
        """Return whether this digest begins with it, apart from characters that people confuse."""
        return _folded(digest[:DIGITS]) == _folded(self.start)

    def rule_in(self, slugs: Iterable[str]) -> list[str]:
        """Return which of these slugs it may mean: an exact match, else those that differ only in case."""
        slugs = list(dict.fromkeys(slugs))
        return [self.rule] if self.rule in slugs else [each for each in slugs if each.lower() == self.rule.lower()]

    def __str__(self) -> str:
        return f"{self.rule}#{self.start}"


def reference_of(rule: str, digest: str) -> str:
    """Return the reference of a rejection by this rule of the caller with this digest."""
    return f"{rule}#{digest[:DIGITS]}"


def parse_reference(text: str, slugs: Iterable[str] = ()) -> Reference | None:
    """Return the reference in this text, such as a response or the reference alone; `None` if there is none.

    Case, spaces, quotes around it and a label such as "Reference:" do not matter. slugs: of rules. If several words
    may be references, such as the number of a ticket, the first one with one of these slugs is returned.
    """
    found = references_in(text)
    if len(found) < 2:
        return found[0] if found else None
    known = {slug.lower() for slug in slugs}
    return next((each for each in found if each.rule.lower() in known), found[0])


def references_in(text: str) -> list[Reference]:
    """Return all possible references in this text, the most likely first; only one if the text is nothing else."""
    if len(text) > MAX_TEXT or "#" not in text:
        return []
    bare = text.strip(_AROUND)
    if label := _LABEL.match(bare):
        bare = bare[label.end() :].strip(_AROUND)
    whole = _TYPED.fullmatch(bare)
    if whole:
        return [Reference(whole[1], "".join(whole[2].split()))]
    matches = chain(_OF_FIELD.finditer(text), _WITHIN.finditer(_ADDRESS.sub(" ", text)))
    return list(islice(dict.fromkeys(Reference(match[1], match[2]) for match in matches), MAX_CANDIDATES))


def _folded(text: str) -> str:
    return text.lower().translate(_ALIKE)
