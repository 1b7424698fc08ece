"""The rules of the database as the text of a new file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, Final

from django.utils.translation import gettext as _

from ...values.terminal import on_terminal, visible
from ..stored import storage
from ..stored.history.snapshots import Data, normal_rule, normal_tier
from .documents import library
from .schema import VERSION, Columns, access_fields, default_of, limit_fields, plain, rule_fields, tier_fields

#: Several lines that can be a block scalar without changes.
_PLAIN_LINES: Final = re.compile(r"(?:[!-~][ -~]*\n)+[!-~][ -~]*")

#: Words that YAML before 1.2 reads as true or false.
_WORDS_OF_OLD: Final = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false", "null", "~"})

#: A document to be written: dicts, lists and plain values.
Document = dict[str, Any]


def text_of_database(style: str, access: Iterable[Mapping[str, Any]] = (), *, owned: bool = False) -> str:
    """Return the rules of the database as the text of a file. style: "yaml" or "json". Raises LibraryMissing.

    access: access entries, from `access_rows`. owned: whether all rules belong to the file from now on; else each
    keeps its owner. Fields that have their default are left out.
    """
    version = storage.committed_version()  # read first: rows saved meanwhile are then newer than the file, not older
    snapshot = storage.current_rows()
    document: Document = {"version": VERSION}
    if version.number:
        document["exported_version"] = f"{version.number}@{version.epoch}"
    if snapshot["tiers"]:
        document["tiers"] = {data["slug"]: file_fields(normal_tier(data), tier_fields()) for data in snapshot["tiers"]}
    document["rules"] = {data["slug"]: file_rule(normal_rule(data), owned=owned) for data in snapshot["rules"]}
    if entries := [*map(_access, access)]:
        document["access"] = entries
    if style == "json":
        return json_of(document)
    left_out = _("Left out, because it cannot be enforced: %(rule)s. %(reason)s")
    comments = [line for entry in snapshot["left_out"] for line in (left_out % entry).splitlines()]
    return yaml_of(document, comments)


def json_of(document: Document) -> str:
    """Return a document as JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def lines_of_row(section: str, data: Data | None, style: str) -> list[str]:
    """Return a tier or a rule of a snapshot as the lines of a file; none for `None`. section: "tiers" or "rules"."""
    if data is None:
        return []
    fields = file_fields(normal_tier(data), tier_fields()) if section == "tiers" else file_rule(normal_rule(data))
    document = {section: {data["slug"]: fields}}
    return (json_of(document) if style == "json" else yaml_of(document)).strip().splitlines()


def file_rule(data: Data, *, owned: bool = False) -> Document:
    """Return the fields of a rule with its limits. owned: without its owner."""
    found = file_fields(data, rule_fields(), always=("name", "mode"))
    if owned or data["owner"] != "admin":  # an unlocked rule still belongs to the file
        found.pop("owner", None)
    return found | {"limits": [file_fields(limit, limit_fields(), always=("algorithm",)) for limit in data["limits"]]}


def _access(entry: Mapping[str, Any]) -> Document:
    digest = {"digest": entry["digest"]} if "digest" in entry else {}
    return {**file_fields(entry, access_fields(), always=("action",)), **digest}


def file_fields(data: Data, columns: Columns, always: Iterable[str] = ("name",)) -> Document:
    """Return the fields that differ from their default, and those that are always written."""
    return {
        name: plain(column, data[name])
        for name, column in columns.items()
        if name in data and (name in always or data[name] != default_of(column))
    }


def yaml_of(document: dict[str, Any], comments: Sequence[str] = ()) -> str:
    """Return a document as YAML: an empty line before each rule, and lists of words in one line. Raises LibraryMissing.

    comments: lines at its top.
    """
    yaml = library(writer=True)
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4_096  # longer than any line, so that no line is broken
    found = _commented(document)
    for section in ("tiers", "rules", "access"):
        if section in found:
            found.yaml_set_comment_before_after_key(section, before="\n")
    rules = found.get("rules", {})
    for slug in [*rules][1:]:
        rules.yaml_set_comment_before_after_key(slug, before="\n", indent=2)
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
