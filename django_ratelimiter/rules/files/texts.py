"""The text of a rules file: read it, with all errors, without a database or Redis; or write one of the database."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from django.db import router
from django.db.models import DecimalField, Model
from django.utils.translation import gettext as _

from ...models import AccessEntry, Rule, RuleLimit, Tier
from ..stored import storage
from ..stored.history.changes import Data, normal_rule, normal_tier
from .rows import TWO_VALUES, VERSION, RowReader, RulesFile, WrongFile, default_of, fields_of

#: Maximum number of values, and their nesting. In YAML a short text with references can contain very many.
_MAX_VALUES: Final = 200_000
_MAX_DEPTH: Final = 50

#: Texts that need no quotes in any YAML, except for the words below.
_PLAIN: Final = re.compile(r"[A-Za-z/_](?:[\w ./()-]*[\w./)-])?", re.ASCII)
#: Words that YAML before 1.2 reads as true, false or null.
_WORDS_OF_OLD: Final = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false", "null"})

#: A document to be written: dicts, lists and plain values.
Document = dict[str, Any]


class LibraryMissing(Exception):
    """Raised if the library for rules files is not installed."""


def load(path: str | Path) -> RulesFile:
    """Return the rules file of this name; "-" = standard input. Raises WrongFile, OSError, and LibraryMissing."""
    data, name = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes(), str(path)
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
    file = RulesFile(name, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
    RowReader(file).read(data)
    if not is_json:
        _check_end(text, data, file)
    if file.faults:
        file.check_names()
    return file


def _check_end(text: str, data: Any, file: RulesFile) -> None:
    """Add an error if a YAML file lacks its end: nothing else shows that it was cut off between two rules."""
    lines = text.rstrip().splitlines()
    if lines and not text.endswith(("\n", "\r")):
        file.faults.append(_("The last line has no line break, so the end of the file may be missing."))
    if not isinstance(data, dict) or data.get("version") != VERSION:
        return
    end = re.fullmatch(r"# end: (\d{1,9}) rules?", lines[-1])
    if end is None:
        error = _("The end may be missing: with “version: %(version)s”, the last line says how many rules there are.")
        file.faults.append(error % {"version": VERSION})
    elif int(end[1]) != len(file.rules) and not file.faults:
        text = _("The last line is “%(line)s”, but the number of rules is %(count)d.")
        file.miscounted = text % {"line": end[0], "count": len(file.rules)}
        file.warnings.append(file.miscounted)


def _json(text: str, name: str) -> Any:
    """Return the values of a JSON text. Raises WrongFile."""

    def group(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            found[key] = TWO_VALUES if key in found else value
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
        problem, _sign, _values = (error.problem or "").partition(" with value ")  # of a doubled name
        words = {"problem": ", ".join(filter(None, (error.context, problem))), **place}
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


def text_of_database(style: str, *, access: bool = False, owned: bool = False) -> str:
    """Return the rules of the database as the text of a file. style: "yaml" or "json".

    access: with access entries. owned: whether all rules belong to the file from now on; else each keeps its owner.
    Fields that have their default are left out.
    """
    version = storage.committed_version()  # read first: rows saved meanwhile are then newer than the file, not older
    snapshot = storage.current_rows()
    document: Document = {"version": VERSION}
    if version.number:
        document["exported_version"] = f"{version.number}@{version.epoch}"
    if snapshot["tiers"]:
        document["tiers"] = {data["slug"]: _fields(normal_tier(data), Tier) for data in snapshot["tiers"]}
    document["rules"] = {data["slug"]: _rule(normal_rule(data), owned=owned) for data in snapshot["rules"]}
    entries = AccessEntry.objects.using(router.db_for_write(AccessEntry)).order_by("kind", "value").values()
    if access and entries:
        document["access"] = [_fields(entry, AccessEntry, always=("action", "kind", "value")) for entry in entries]
    if style == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    left_out = _("Left out, because it cannot be enforced: %(rule)s. %(reason)s")
    comments = [f"# {line}\n" for entry in snapshot["left_out"] for line in (left_out % entry).splitlines()]
    count = len(document["rules"])
    return "".join([*comments, yaml_of(document), f"\n# end: {count} rule{'s' * (count != 1)}\n"])


def _rule(data: Data, *, owned: bool) -> Document:
    found = _fields({**data, "owner": Rule.Owner.FILE} if owned else data, Rule, always=("name", "mode"))
    limits = []
    for limit in data["limits"]:
        tier = {"tier": limit["tier"]} if limit["tier"] else {}
        limits.append(tier | _fields(limit, RuleLimit, always=("algorithm",)))
    return found | {"limits": limits}


def _fields(data: Data, model: type[Model], always: Iterable[str] = ("name",)) -> Document:
    """Return the fields that differ from their default, and those that are always written."""
    return {
        name: _plain(column, data[name])
        for name, column in fields_of(model).items()
        if name in data and (name in always or data[name] != default_of(column))
    }


def _plain(column: Any, value: Any) -> Any:
    """Return a value of a model with JSON's types."""
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or not isinstance(column, DecimalField):
        return value
    number = Decimal(value)
    return int(number) if number == number.to_integral_value() else float(number)


def yaml_of(document: Document) -> str:
    """Return a document as YAML: an empty line before each section and rule, and lists of words in one line."""
    return "".join(f"{line}\n" for line in _lines(document))


def _lines(group: Document, pad: str = "", section: str = "") -> Iterator[str]:
    for number, (key, value) in enumerate(group.items()):
        if number and (section == "rules" or (not pad and isinstance(value, dict | list))):
            yield ""
        if isinstance(value, dict) and value:
            yield f"{pad}{_scalar(key)}:"
            yield from _lines(value, f"{pad}  ", "" if pad else key)
        elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
            yield f"{pad}{_scalar(key)}:"
            for each in value:
                first, *others = _lines(each, f"{pad}    ")
                yield from (f"{pad}  - {first.lstrip()}", *others)
        else:
            yield f"{pad}{_scalar(key)}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    """Return a value in one line, which is JSON but for characters that YAML does not allow."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float):
        return f"{Decimal(str(value)):f}"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_OLD:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)
