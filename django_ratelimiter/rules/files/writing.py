"""Writing rules to a file: a new one, or an existing one in which only the values change that differ."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from django.utils.translation import gettext as _

from ...databases import as_committed
from ...engine.base import Version
from ..stored import storage
from ..stored.compiler import snapshot_of_rows
from ..stored.history.snapshots import Data, Snapshot, normal_rule, normal_tier
from .fields import VERSION, FileField, access_fields, limit_fields, rule_fields, tier_fields
from .reading import read
from .text.faults import Fault, WrongFile
from .text.updating import updated
from .text.yaml import place_of_reference, yaml_of

#: A document to be written: dicts, lists and plain values.
Document = dict[str, Any]


def text_of_database(style: str, access: Iterable[Mapping[str, Any]] = (), *, owned: bool = False) -> str:
    """Return the rules of the database as the text of a file. style: "yaml" or "json". Raises YamlMissing.

    access: access entries, from `access_rows`. owned: whether all rules belong to the file from now on.
    """
    version = storage.committed_version()  # read first: rows saved meanwhile are then newer than the file, not older
    document, left_out = _document(access, owned)
    if version.number:
        document = {"version": VERSION, "exported_version": _written(version), **document}
    if style == "json":
        return json_of(document)
    comments = [_("Left out, because it cannot be enforced: %(rule)s. %(reason)s") % entry for entry in left_out]
    return yaml_of(document, [line for text in comments for line in text.splitlines()])


def updated_file(
    path: Path, access: Iterable[Mapping[str, Any]] = (), *, style: str = "yaml", owned: bool = False
) -> str:
    """Return the text of an existing file with the values of the database. In YAML, comments stay.

    The byte order mark, if the file has one, and line ends with CR and LF stay.
    access: empty = the file's own entries stay. Raises WrongFile if the file has errors or contradicts itself,
    and YamlMissing.
    """
    raw = path.read_bytes()
    text = raw.decode("utf-8-sig")
    found = _updated(text.replace("\r\n", "\n"), path, access, style, owned=owned)
    mark = "\ufeff" if raw.startswith(BOM_UTF8) else ""
    return mark + (found.replace("\n", "\r\n") if "\r\n" in text else found)


def _updated(text: str, path: Path, access: Iterable[Mapping[str, Any]], style: str, *, owned: bool) -> str:
    file = read(text, str(path))
    if style == "json":
        return text_of_database(style, [*access] or [row._asdict() for row in file.access], owned=owned)
    version = storage.committed_version()
    before = document_of(file.snapshot)
    after, _left_out = _document(access, owned)
    if file.exported is not None:
        before["exported_version"] = _written(file.exported)
    if version.number:  # else earlier edits in the database would count as undone by the file
        after["exported_version"] = _written(version)
    found = updated(text, before, after)
    told = {key: each for key, each in after.items() if key not in ("access", "exported_version")}
    if document_of(read(found, str(path)).snapshot) == told:
        return found
    problem = _(
        "A reference such as “*name” uses one value in two places of this file, but the two now differ in the "
        "database. Write out both values, or export into a new file."
    )
    raise WrongFile(str(path), [Fault(place_of_reference(text), problem)])


def document_of(snapshot: Snapshot, access: Iterable[Mapping[str, Any]] = (), *, owned: bool = False) -> Document:
    """Return the tiers and rules of a snapshot, and access entries, in the format of a file, without defaults.

    owned: whether all rules belong to the file from now on; else each keeps its owner.
    """
    rules = {data["slug"]: _rule(normal_rule(data), owned) for data in snapshot["rules"]}
    document: Document = {"version": VERSION}
    if snapshot["tiers"]:
        document["tiers"] = {data["slug"]: _fields(normal_tier(data), tier_fields()) for data in snapshot["tiers"]}
    document["rules"] = rules
    entries = [_fields(entry, access_fields(), always=("action",)) for entry in access]
    return document | ({"access": entries} if entries else {})


def _written(version: Version) -> str:
    return f"{version.number}@{version.epoch}"


def json_of(document: Document) -> str:
    """Return a document as JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _rule(data: Data, owned: bool) -> Document:
    found = _fields(data, rule_fields(), always=("name", "mode"))
    if owned or data["owner"] != "admin":  # an unlocked rule still belongs to the file
        found.pop("owner", None)
    fields = limit_fields()
    return found | {"limits": [_fields(limit, fields, always=("algorithm",)) for limit in data["limits"]]}


def _fields(data: Data, fields: Mapping[str, FileField], always: Iterable[str] = ("name",)) -> Document:
    """Return the fields that differ from their default, and those that are always written."""
    return {
        name: field.plain(data[name])
        for name, field in fields.items()
        if name in data and (name in always or data[name] != field.default)
    }


def _document(access: Iterable[Mapping[str, Any]], owned: bool) -> tuple[Document, list[Mapping[str, str]]]:
    snapshot = snapshot_of_rows(as_committed)
    return document_of(snapshot, access, owned=owned), snapshot["left_out"]
