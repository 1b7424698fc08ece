"""The rules of the database as the text of a new file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.db import router
from django.db.models import DecimalField, Model
from django.utils.translation import gettext as _

from ...models import AccessEntry, Rule, RuleLimit, Tier
from ..stored import storage
from ..stored.history.changes import Data, normal_rule, normal_tier
from .rows import VERSION, default_of, fields_of

#: Texts that need no quotes in any YAML, except for the words below.
_PLAIN: Final = re.compile(r"[A-Za-z/_](?:[\w ./()-]*[\w./)-])?", re.ASCII)
#: Words that YAML before 1.2 reads as true, false or null.
_WORDS_OF_OLD: Final = frozenset({"on", "off", "yes", "no", "y", "n", "true", "false", "null"})

#: A document to be written: dicts, lists and plain values.
Document = dict[str, Any]


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
