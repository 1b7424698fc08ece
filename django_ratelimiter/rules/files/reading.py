"""Reading a rules file: its tiers, rules and access entries, or all errors. It needs no database and no Redis."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from django.utils.translation import gettext as _

from ...engine.base import Version
from ...models import AccessEntry
from ...values.bounds import MAX_LISTED
from ...values.terminal import visible
from ..ruleset import RuleSet
from .rows import VERSION, RowReader, end_line

#: The name of the standard input.
STDIN: Final = "-"

#: The last line of an export, by which a reader sees that the file is whole.
END: Final = re.compile(r"# end: (\d{1,9}) rules?")

#: Maximum number of values, and their nesting. In YAML a short text with references can contain very many.
_MAX_VALUES: Final = 200_000
_MAX_DEPTH: Final = 50
#: Maximum length of an error, which repeats words of the file.
_MAX_TEXT: Final = 500


class LibraryMissing(Exception):
    """Raised if the library for rules files is not installed."""


class WrongFile(Exception):
    """A rules file that is not applied. Its text has one line for each of its faults."""

    def __init__(self, file: str, faults: Sequence[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(in_lines(file, faults)))


def in_lines(file: str, found: Sequence[str]) -> list[str]:
    """Return errors or warnings as lines, such as “limits.yaml: rules.a.cost: …”. Only the first are listed."""
    lines = [visible(f"{file}: {text[:_MAX_TEXT]}") for text in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        text = _("Only the first %(count)d of %(all)d are listed.")
        lines.append(text % {"count": MAX_LISTED, "all": len(found)})
    return lines


@dataclass(frozen=True)
class RulesFile:
    """A valid file.

    digest: of its text. tiers, rules: as in a snapshot. access: its entries. doubts: errors by the slug of a rule that
    names a view or an identity that the project does not have: such a rule is not applied, but may stay. warnings: what
    may be right. exported: the version of the database that it was exported from; `None` = the file does not name it.
    """

    name: str
    digest: str
    tiers: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, Any]]
    access: Sequence[AccessEntry]
    doubts: Mapping[str, Sequence[str]]
    warnings: Sequence[str]
    exported: Version | None = None

    @property
    def snapshot(self) -> dict[str, Any]:
        """Return its tiers and rules as a snapshot, as the compiler makes it from rows."""
        return {"tiers": list(self.tiers), "rules": list(self.rules), "left_out": []}

    def rule_set(self) -> RuleSet:
        """Return its rules as a rule set."""
        return RuleSet.from_snapshot(self.snapshot)

    def check_names(self) -> None:
        """Raise WrongFile if a rule names a view or an identity that the project does not have."""
        if self.doubts:
            raise WrongFile(self.name, [*chain(*self.doubts.values())])


def load(path: str | Path) -> RulesFile:
    """Return the rules file of this name; "-" = standard input. Raises WrongFile, OSError, and LibraryMissing."""
    data, name = sys.stdin.buffer.read() if str(path) == STDIN else Path(path).read_bytes(), str(path)
    if b"\0" in data[:4]:  # UTF-16 or UTF-32: one of the first bytes is zero
        raise WrongFile(name, [_("This is UTF-16. Save the file as UTF-8.")])
    try:
        return read(data.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        text = _("Not UTF-8, in line %(line)d.") % {"line": data.count(b"\n", 0, error.start) + 1}
        raise WrongFile(name, [text]) from error


def read(text: str, name: str) -> RulesFile:
    """Return the rules of this text. Raises WrongFile, and LibraryMissing.

    name: of the file in errors. It is JSON if its name or its first character says so, else YAML.
    """
    is_json = name.endswith(".json") or (not name.endswith((".yaml", ".yml")) and text.lstrip()[:1] in ("{", "["))
    data = _json(text, name) if is_json else _yaml(text.removeprefix("\ufeff"), name)
    rows = RowReader()
    rows.read(data)
    if not is_json:
        _check_end(text, data, rows)
    if rows.faults:
        raise WrongFile(name, [*rows.faults, *chain(*rows.doubts.values())])
    number, _at, epoch = data.get("exported_version", "").partition("@")
    exported = Version(int(number), int(epoch)) if number else None
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return RulesFile(name, digest, rows.tiers, rows.rules, rows.access, rows.doubts, rows.warnings, exported)


def _check_end(text: str, data: Any, rows: RowReader) -> None:
    """Add an error if a YAML file lacks its end: nothing else shows that it was cut off between two rules."""
    lines = text.split()
    if lines and not text.endswith(("\n", "\r")):
        rows.faults.append(_("The last line has no line break, so the end of the file may be missing."))
    end = END.fullmatch(text.rstrip().splitlines()[-1]) if lines else None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        return
    if end is None:
        error = _("The end may be missing: a file with “version: %(version)s” has a last line such as “%(line)s”.")
        rows.faults.append(error % {"version": VERSION, "line": end_line(len(rows.rules))})
    elif int(end[1]) != len(rows.rules) and not rows.faults:
        warning = _("The last line is “%(line)s”, but the number of rules is %(count)d.")
        rows.warnings.append(warning % {"line": end[0], "count": len(rows.rules)})


def _json(text: str, name: str) -> Any:
    """Return the values of a JSON text. Raises WrongFile."""

    def group(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(_("%(key)s is here twice") % {"key": key})
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=group)
    except (ValueError, RecursionError) as error:
        raise WrongFile(name, [_("Not JSON: %(problem)s.") % {"problem": error}]) from error


def _yaml(text: str, name: str) -> Any:
    """Return the values of a YAML text, by ruamel's safe loader. Raises WrongFile, and LibraryMissing."""
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.constructor import SafeConstructor
        from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning
    except ImportError as error:
        text = _('Rules files need the extra “yaml”: pip install "django-tiered-ratelimiter[yaml]".')
        raise LibraryMissing(text) from error

    class Constructor(SafeConstructor):
        """Leaves dates as they are written."""

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = Constructor
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)
            node = reader.compose(text)
        if node is None:
            return None
        _measure(node)
        return reader.constructor.construct_document(node)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = {"line": mark.line + 1, "column": mark.column + 1} if mark else {"line": 1, "column": 1}
        words = {"problem": ", ".join(filter(None, (error.context, error.problem))), **place}
        text = _("Not YAML, in line %(line)d, column %(column)d: %(problem)s.")
        raise WrongFile(name, [text % words]) from error
    except Exception as error:  # a tag, directive or number that the library cannot use raises errors of many kinds
        problem = " ".join(str(error).split()) or type(error).__name__
        raise WrongFile(name, [_("Not YAML: %(problem)s.") % {"problem": problem}]) from error


def _measure(node: Any, depth: int = 0, left: int = _MAX_VALUES) -> int:
    """Return how many more values there may be. Raises ValueError if there are too many, with those of references."""
    left -= 1
    if left < 0 or depth > _MAX_DEPTH:
        raise ValueError(_("this is too large or too deep for a rules file"))
    if node.id != "scalar":
        for each in node.value:
            for part in each if node.id == "mapping" else (each,):
                left = _measure(part, depth + 1, left)
    return left
