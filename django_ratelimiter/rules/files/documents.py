"""The text of a rules file as plain values, with the place of each."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .faults import Fault, Place, WrongFile, shown

#: Maximum number of values. In YAML a short text with references can contain very many.
MAX_VALUES: Final = 200_000
#: Maximum nesting; a rules file has five levels.
MAX_DEPTH: Final = 50
#: Maximum characters of a number, and of decimal places before or after the point. No field needs nearly as many.
_MAX_DIGITS: Final = 100
#: How many times longer references may make a text.
_MAX_GROWTH: Final = 10

_TAG: Final = "tag:yaml.org,2002:"

#: What is wrong with a text that is not YAML, and what would be right, by the words of the library.
_PROBLEMS: Final = {
    r"expected <block end>|did not find expected": gettext_lazy(
        "This line is not indented like the other lines of its group, or a bracket or quote above it is not closed."
    ),
    r"mapping values are not allowed": gettext_lazy(
        "This “:” is not expected here. Write “name: value”, with a space after the colon, and quote texts with “: ”."
    ),
    r"could not find expected ':'": gettext_lazy("A field is “name: value”, with a colon and a space."),
    r"expected ',' or '[\]}]'": gettext_lazy("A comma or the closing bracket is missing before this."),
    r"quoted scalar, found unexpected end": gettext_lazy("The quote that begins here is not closed."),
    r"cannot start any token": gettext_lazy("A text cannot begin with this character. Put the text in quotes."),
    r"undefined alias": gettext_lazy("Nothing above has this name. Write “&name” before the value that is meant."),
    r"expected a single document": gettext_lazy("A rules file is one document. Leave this line out."),
    r"unknown escape character": gettext_lazy("This is not an escape in double quotes. Use single quotes."),
}
#: What begins or ends a value, in a text that may also have it within one.
_MARK: Final = re.compile(r"[\[\]{},\n]|[:?-](?=\s)")
#: Characters of a valid JSON text that YAML does not allow, or reads as the end of a line.
_ONLY_JSON: Final = re.compile("[\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufeff\\ufffe\\uffff]")
#: Characters that databases do not store: NUL, and half of a UTF-16 pair.
_NOT_STORED: Final = re.compile("[\\x00\\ud800-\\udfff]")

#: Where a value is: the keys, and numbers in lists, that lead to it.
Path = tuple[str | int, ...]


class LibraryMissing(Exception):
    """Raised if the libraries for rules files are not installed."""


class Document:
    """The values of a text: dicts, lists, texts, int, Decimal, bool and `None`. Keys are texts, as they are written."""

    data: Any
    #: The place of each value, and of each key of a dict.
    places: dict[Path, Place]
    keys: dict[Path, Place]
    #: The keys and values that cannot be used.
    faults: list[Fault]
    #: The numbers and words that are not texts, as they are written.
    written: dict[Path, str]
    #: The names, such as “*few”, with which a tier or rule refers to what is written elsewhere.
    references: dict[Path, set[str]]

    def __init__(self, text: str, file: str, *, is_json: bool, most: int = MAX_VALUES) -> None:
        """Parse a text with at most so many values. Raises WrongFile, and LibraryMissing."""
        self.places, self.keys, self.faults, self.written, self.references = {}, {}, [], {}, {}
        self._is_json = is_json
        self._row: Path = ()  #: the tier or rule that is being read
        self._file, self._values_left, self._characters_left = file, most, _MAX_GROWTH * len(text)
        node = _composed(_as_yaml(text, file) if is_json else text, file, most)
        self.places[()] = Place(1, 1)
        self.data = None if node is None else self._value(node, ())

    def place_of(self, *path: str | int) -> Place:
        """Return the place of a value. If it is missing, that of the key of the dict or list that it belongs in."""
        return self.places.get(path) or self.keys.get(path[:-1]) or self.places[path[:-1]]

    def _value(self, node: Any, path: Path) -> Any:
        place = self.places[path] = self._counted(node, len(path))
        if not str(node.tag).startswith(_TAG):
            self.faults.append(Fault(place, _("Tags such as %(tag)s are not supported.") % {"tag": node.tag}))
        if node.id == "mapping":
            return self._group(node, path)
        if node.id == "sequence":
            return [self._value(each, (*path, number)) for number, each in enumerate(node.value)]
        value = _scalar(node)
        if path[4:] == ("tier",) and value is not None and not self._is_json:  # a slug, as those before colons
            value = node.value
        value = self._storable(value, place)
        if not isinstance(value, str):
            self.written[path] = node.value
        return value

    def _counted(self, node: Any, depth: int) -> Place:
        """Return the place of a node. Raises WrongFile if it is one too many: a reference may contain itself."""
        place = _place(node.start_mark)
        self._values_left -= 1
        if node.anchor and self._row and _place(node.start_mark) < self.keys[self._row]:
            self.references.setdefault(self._row, set()).add(f"*{node.anchor}")
        self._characters_left -= len(node.value)
        if depth > MAX_DEPTH or min(self._values_left, self._characters_left) < 0:
            raise _too_large(self._file, place)
        return place

    def _fields(self, node: Any, depth: int = 0) -> Iterator[tuple[Any, Any, bool]]:
        """Yield the keys and values of a group and whether they are merged: its own, then those of merge keys."""
        merged: list[Any] = []
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                merged += value.value if value.id == "sequence" else [value]
            else:
                yield key, value, depth > 0
        for each in merged:
            place = self._counted(each, depth)
            if each.id == "mapping":
                yield from self._fields(each, depth + 1)
            else:
                self.faults.append(Fault(place, _("A merge key (<<) takes a group of fields, such as *name.")))

    def _group(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value, is_merged in self._fields(node):
            place = _place(key.start_mark)
            if key.id != "scalar":
                self.faults.append(Fault(place, _("A slug is a text.")))
                continue
            name = self._storable(key.value, place)
            where = (*path, name)
            if name in found and is_merged:
                continue
            if name in found:
                text = _("%(word)s is here twice: also in line %(line)s. Keep one of them.")
                self.faults.append(Fault(place, text % {"word": shown(name), "line": self.keys[where].line}))
            else:
                self.keys[where] = place
                row, self._row = self._row, where if len(path) < 2 else self._row
                found[name] = self._value(value, where)
                self._row = row
        return found

    def _storable(self, value: Any, place: Place) -> Any:
        """Return a value. Raises WrongFile if it is a text with a character that cannot be stored."""
        if not isinstance(value, str) or not _NOT_STORED.search(value):
            return value
        whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # joins pairs
        if found := _NOT_STORED.search(whole):
            text = _("A text cannot hold the character %(code)s.") % {"code": f"U+{ord(found[0]):04X}"}
            raise WrongFile(self._file, [Fault(place, text)])
        return whole


def library(*, writer: bool = False) -> Any:
    """Return ruamel's reader of nodes, or its writer. Raises LibraryMissing."""
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        raise missing() from error
    return YAML(typ="rt" if writer else "safe", pure=True)


def missing() -> LibraryMissing:
    """Return the error for a library that is not installed."""
    return LibraryMissing(_('Rules files need the extra “yaml”: pip install "django-tiered-ratelimiter[yaml]".'))


def _as_yaml(text: str, file: str) -> str:
    """Return a JSON text as YAML, which has the same places. Raises WrongFile if it is not JSON."""
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        fault = Fault(Place(error.lineno, error.colno), _("Not JSON: %(problem)s.") % {"problem": error.msg})
        raise WrongFile(file, [fault]) from error
    except RecursionError as error:
        raise _too_large(file, Place(1, 1)) from error
    return _ONLY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\t", " "))


def _composed(text: str, file: str, most: int) -> Any:
    """Return ruamel's nodes of a YAML text; `None` if it is empty. Raises WrongFile, and LibraryMissing."""
    reader = library()
    from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError

    _check_size(text, file, most)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)
            return reader.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.context_mark and re.search(r"(stream end|end of stream)", error.problem or ""):
            mark = error.context_mark  # where the open bracket or quote begins
        words = ", ".join(filter(None, (error.context, error.problem)))
        known = next((text for problem, text in _PROBLEMS.items() if re.search(problem, words)), words)
        fault = _("Not YAML: %(problem)s.") % {"problem": str(known).removesuffix(".")}
        if mark and mark.buffer[mark.pointer : mark.pointer + 1] == "\t":
            fault = _("A tab is not allowed here. Indent YAML with spaces.")
        raise WrongFile(file, [Fault(_place(mark) if mark else Place(1, 1), fault)]) from error
    except RecursionError as error:
        raise _too_large(file, Place(1, 1)) from error
    except (YAMLError, ValueError) as error:  # such as a character that YAML does not allow
        at = getattr(error, "position", 0) or 0
        place = Place(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
        problem = getattr(error, "reason", "") or str(error)
        raise WrongFile(file, [Fault(place, _("Not YAML: %(problem)s.") % {"problem": problem})]) from error


def _check_size(text: str, file: str, most: int) -> None:
    """Raise WrongFile for a text that takes long to parse: by its values, and by brackets open in one line."""
    depth = 0
    for number, found in enumerate(_MARK.finditer(text)):
        mark = found[0]
        depth = 0 if mark == "\n" else depth + (mark in "[{") - (mark in "]}")
        if number > most or depth > MAX_DEPTH:
            raise _too_large(file, Place(text.count("\n", 0, found.start()) + 1, 1))


def _too_large(file: str, place: Place) -> WrongFile:
    return WrongFile(file, [Fault(place, _("This is too large or too deep for a rules file."))])


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _scalar(node: Any) -> Any:
    """Return the plain value of a scalar: a number, true, false or null; otherwise text, dates included."""
    tag, text = str(node.tag).removeprefix(_TAG), node.value
    if tag == "null":
        return None
    if tag == "bool":  # in YAML 1.1 also words that are texts here, such as “off”
        return {"true": True, "false": False}.get(text.lower(), text)
    plain = text.replace("_", "")
    if tag not in ("int", "float") or len(plain) > _MAX_DIGITS:
        return text
    with suppress(ValueError):
        return int(plain, 0)
    with suppress(ArithmeticError):
        number = Decimal(plain)
        if number.is_finite() and abs(number.adjusted()) <= _MAX_DIGITS:
            return int(number) if tag == "int" else number
    return text
