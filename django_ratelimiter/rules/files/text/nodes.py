"""The text of a rules file as a tree of values with their places."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from django.utils.translation import gettext as _

from ..faults import Fault, Place, WrongFile

#: Maximum number of values. In YAML a short text with references can contain very many.
MAX_NODES: Final = 200_000
#: Maximum nesting; a rules file has five levels.
MAX_DEPTH: Final = 50
#: Maximum characters of a number, and of decimal places before or after the point. No field needs nearly as many.
MAX_DIGITS: Final = 100

#: Characters that databases do not store: NUL, and half of a UTF-16 pair.
_NOT_STORED: Final = re.compile("[\\x00\\ud800-\\udfff]")


@dataclass(frozen=True)
class Node:
    """A value with its place. value: a text, int, Decimal, bool, `None`, list of nodes, or pairs of key and value."""

    value: Any
    place: Place


@dataclass(frozen=True)
class Pairs:
    """The value of a node with keys: pairs in the order of the file. A key may occur twice."""

    pairs: tuple[tuple[Node, Node], ...]


def tree_of_json(text: str, file: str, most: int = MAX_NODES) -> Node:
    """Return the tree of a JSON text with at most so many values. Raises WrongFile."""
    return _Json(text, file, most).tree()


def too_large(file: str, place: Place) -> WrongFile:
    """Return the error for a text with too many values, or with values nested too deeply."""
    return WrongFile(file, [Fault(place, _("This is too large or too deep for a rules file."))])


def exact(text: str | int | Decimal) -> Decimal:
    """Return a number. Raises ValueError if it is invalid, not finite, or too long."""
    try:
        number = Decimal(text)
    except ArithmeticError as error:
        raise ValueError(text) from error
    if not number.is_finite() or len(number.as_tuple().digits) > MAX_DIGITS or abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError(text)
    return number


def checked(value: Any, place: Place, file: str) -> Any:
    """Return a value. Raises WrongFile if it is a text with a character that cannot be stored."""
    found = _NOT_STORED.search(value) if isinstance(value, str) else None
    if found is not None:
        code = f"U+{ord(found[0]):04X}"
        raise WrongFile(file, [Fault(place, _("A text cannot hold the character %(code)s.") % {"code": code})])
    return value


class _Json:
    """JSON with places. The standard library's reader has none for values, and drops the first of two equal keys."""

    _SPACE: Final = re.compile(r"[ \t\n\r]*")
    _STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
    _NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
    _WORDS: Final = (("true", True), ("false", False), ("null", None))

    def __init__(self, text: str, file: str, most: int) -> None:
        self._text, self._file, self._most = text.removeprefix("\ufeff"), file, most
        self._at, self._nodes = 0, 0
        self._lines = [0, *(found.end() for found in re.finditer("\n", self._text))]

    def tree(self) -> Node:
        """Return the tree of the whole text."""
        node = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise self._wrong(_("Nothing may follow the end of the document."))
        return node

    def _value(self, depth: int) -> Node:
        self._skip()
        place = self._place()
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > self._most:
            raise too_large(self._file, place)
        begins = self._text[self._at : self._at + 1]
        if begins == "{":
            return Node(Pairs(tuple(self._several("}", lambda: self._pair(depth)))), place)
        if begins == "[":
            return Node(self._several("]", lambda: self._value(depth + 1)), place)
        if begins == '"':
            return self._string()
        return Node(self._plain(), place)

    def _plain(self) -> Any:
        for word, value in self._WORDS:
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        found = self._NUMBER.match(self._text, self._at)
        if found is None:
            raise self._wrong(_("JSON expects a value here."))
        try:
            number = exact(found[0])
        except ValueError:
            raise self._wrong(_("This number is too long.")) from None
        self._at = found.end()
        return number if found[1] or found[2] else int(number)

    def _several(self, end: str, one: Callable[[], Any]) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        while True:
            self._skip()
            if self._text.startswith(end, self._at) and not found:
                break
            found.append(one())
            self._skip()
            if not self._text.startswith(",", self._at):
                break
            self._at += 1
        self._expect(end)
        return found

    def _pair(self, depth: int) -> tuple[Node, Node]:
        self._skip()
        key = self._string()
        self._skip()
        self._expect(":")
        return key, self._value(depth + 1)

    def _string(self) -> Node:
        place = self._place()
        found = self._STRING.match(self._text, self._at)
        if found is None:
            raise self._wrong(_("JSON expects a text in double quotes here."))
        self._at = found.end()
        return Node(checked(json.loads(found[0]), place, self._file), place)

    def _expect(self, sign: str) -> None:
        if not self._text.startswith(sign, self._at):
            raise self._wrong(_("JSON expects “%(sign)s” here.") % {"sign": sign})
        self._at += len(sign)

    def _skip(self) -> None:
        self._at = self._SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # it always matches

    def _place(self) -> Place:
        line = bisect_right(self._lines, self._at)
        return Place(line, self._at - self._lines[line - 1] + 1)

    def _wrong(self, text: str) -> WrongFile:
        return WrongFile(self._file, [Fault(self._place(), text)])
