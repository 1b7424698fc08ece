"""The rules of the database as the text of a new file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext as _

from ...databases import as_committed
from ..stored import storage
from ..stored.compiler import snapshot_of_rows
from ..stored.history.snapshots import Data, normal_rule, normal_tier
from .fields import VERSION, FileField, access_fields, limit_fields, rule_fields, tier_fields
from .text.yaml import yaml_of

#: A document to be written: dicts, lists and plain values.
Document = dict[str, Any]


def text_of_database(style: str, access: Iterable[Mapping[str, Any]] = (), *, owned: bool = False) -> str:
    """Return the rules of the database as the text of a file. style: "yaml" or "json". Raises YamlMissing.

    access: access entries, from `access_rows`. owned: whether all rules belong to the file from now on; else each
    keeps its owner. Fields that have their default are left out.
    """
    version = storage.committed_version()  # read first: rows saved meanwhile are then newer than the file, not older
    snapshot = snapshot_of_rows(as_committed)
    document: Document = {"version": VERSION}
    if version.number:
        document["exported_version"] = f"{version.number}@{version.epoch}"
    if snapshot["tiers"]:
        document["tiers"] = {data["slug"]: _fields(normal_tier(data), tier_fields()) for data in snapshot["tiers"]}
    document["rules"] = {data["slug"]: _rule(normal_rule(data), owned) for data in snapshot["rules"]}
    if entries := [_fields(entry, access_fields(), always=("action",)) for entry in access]:
        document["access"] = entries
    if style == "json":
        return json_of(document)
    left_out = _("Left out, because it cannot be enforced: %(rule)s. %(reason)s")
    comments = [line for entry in snapshot["left_out"] for line in (left_out % entry).splitlines()]
    return yaml_of(document, comments)


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
