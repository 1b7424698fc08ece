"""YAML with ruamel.yaml: values with their places, and new documents with comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from typing import Any, Final

from django.utils.translation import gettext as _

from ....values.terminal import on_terminal, visible
from ..faults import Fault, Place, WrongFile
from .nodes import MAX_DEPTH, MAX_DIGITS, MAX_NODES, Node, Pairs, checked, exact, too_large

_TAG: Final = "tag:yaml.org,2002:"
#: Longer than any line, so that no line is broken.
_WIDTH: Final = 4_096
#: What begins or ends a value, in a text that may also have it within one.
_MARK: Final = re.compile(r"[\[\]{},\n]|[:?-](?=\s)")
#: How many times longer references may make a text.
_MAX_GROWTH: Final = 10


class YamlMissing(Exception):
    """Raised if the library for YAML is not installed."""


def tree_of_yaml(text: str, file: str, most: int = MAX_NODES) -> Node:
    """Return the tree of a YAML text with at most so many values. Raises WrongFile, and YamlMissing."""
    reader = _library()(typ="safe", pure=True)
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    _check_size(text, file, most)
    try:
        found = reader.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.context_mark and re.search(
            r"(stream end|end of stream)", error.problem or ""
        ):  # the place is where the open bracket or quote begins
            mark = error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        words = ", ".join(filter(None, (error.context, error.problem)))
        fault = _("Not YAML: %(problem)s.") % {"problem": words}
        if mark and mark.buffer[mark.pointer : mark.pointer + 1] == "\t":
            fault = _("A tab is not allowed here. Indent YAML with spaces.")
        raise WrongFile(file, [Fault(place, fault)]) from error
    except RecursionError as error:
        raise too_large(file, Place(1, 1)) from error
    except (YAMLError, ValueError) as error:  # such as a character that YAML does not allow
        at = getattr(error, "position", 0) or 0
        line_start = text.rfind("\n", 0, at) + 1
        place = Place(text.count("\n", 0, at) + 1, at - line_start + 1)
        problem = getattr(error, "reason", "") or str(error)
        raise WrongFile(file, [Fault(place, _("Not YAML: %(problem)s.") % {"problem": problem})]) from error
    return Node(None, Place(1, 1)) if found is None else _Tree(file, most, _MAX_GROWTH * len(text)).of(found, 0)


def _check_size(text: str, file: str, most: int) -> None:
    """Raise WrongFile for a text that takes long to parse: by its values, and by brackets open in one line."""
    depth = 0
    for number, found in enumerate(_MARK.finditer(text)):
        mark = found[0]
        depth = 0 if mark == "\n" else depth + (mark in "[{") - (mark in "]}")
        if number > most or depth > MAX_DEPTH:
            raise too_large(file, Place(text.count("\n", 0, found.start()) + 1, 1))


def _library() -> Any:
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        text = _(
            'YAML needs the extra “yaml”: pip install "django-tiered-ratelimiter[yaml]". JSON needs none: use a file '
            "whose name ends in .json."
        )
        raise YamlMissing(text) from error
    return YAML


class _Tree:
    """Converts ruamel's nodes to ours."""

    def __init__(self, file: str, nodes_left: int, characters_left: int) -> None:
        self._file, self._nodes_left, self._characters_left = file, nodes_left, characters_left

    def of(self, node: Any, depth: int) -> Node:
        place = Place(node.start_mark.line + 1, node.start_mark.column + 1)
        self._nodes_left -= 1
        self._characters_left -= len(node.value)
        if depth > MAX_DEPTH or min(self._nodes_left, self._characters_left) < 0:  # also if a reference contains itself
            raise too_large(self._file, place)
        if node.id == "mapping":
            return Node(Pairs(tuple(self._pairs(node, depth))), place)
        if node.id == "sequence":
            return Node([self.of(each, depth + 1) for each in node.value], place)
        return Node(checked(scalar_of(node), place, self._file), place)

    def _pairs(self, node: Any, depth: int) -> Iterator[tuple[Node, Node]]:
        for key, value in node.value:
            yield self.of(key, depth + 1), self.of(value, depth + 1)


def scalar_of(node: Any) -> Any:
    """Return the plain value of a scalar: a number, boolean or null; otherwise text, dates included."""
    tag, text = str(node.tag).removeprefix(_TAG), node.value
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag not in ("int", "float"):
        return text
    plain = text.replace("_", "")
    if len(plain) > MAX_DIGITS:
        return text
    with suppress(ValueError):
        return int(plain, 0)
    try:
        number = exact(plain)
    except ValueError:  # such as .inf
        return text
    return int(number) if tag == "int" else number


def yaml_of(
    document: dict[str, Any], comments: Sequence[str] = (), on_rules: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return a document as YAML: an empty line before each rule, and lists of words in one line. Raises YamlMissing.

    comments: lines at its top. on_rules: lines above rules, by slug.
    """
    yaml = _library()(typ="rt", pure=True)
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = _WIDTH
    found = _commented(document)
    for section in ("tiers", "rules", "access"):
        if section in found:
            found.yaml_set_comment_before_after_key(section, before="\n")
    rules = found.get("rules", {})
    for place, slug in enumerate(rules):
        lines = ([""] if place else []) + [*(on_rules or {}).get(str(slug), ())]
        if lines:
            rules.yaml_set_comment_before_after_key(slug, before="\n".join(lines) or "\n", indent=2)
    written = StringIO()
    written.writelines(f"# {line}\n" if line else "#\n" for line in comments)
    yaml.dump(found, written)
    return written.getvalue()


def _commented(value: Any) -> Any:
    """Return plain values as ruamel's types, which can have comments."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    if isinstance(value, dict):
        return CommentedMap((_commented(key), _commented(each)) for key, each in value.items())
    if isinstance(value, list):
        found = CommentedSeq(map(_commented, value))
        if not any(isinstance(each, dict) for each in value):
            found.fa.set_flow_style()
        return found
    if not isinstance(value, str):
        return value
    if value.isprintable() and visible(value) == value and value.lower() not in _WORDS_OF_OLD:
        return value
    is_block = _PLAIN_LINES.fullmatch(value) and on_terminal(value.split("\n")) == value
    return LiteralScalarString(value) if is_block else DoubleQuotedScalarString(value)


#: Several lines that can be a block scalar without changes.
_PLAIN_LINES: Final = re.compile(r"(?:[!-~][ -~]*\n)+[!-~][ -~]*")

#: Words that YAML before 1.2 reads as true or false.
_WORDS_OF_OLD: Final = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false", "null", "~"})
