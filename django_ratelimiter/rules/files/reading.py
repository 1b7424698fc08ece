"""Reading a rules file: its tiers, rules and access entries, or all errors with line and column.

It needs no database and no Redis. The models themselves validate the rules.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _

from ...engine.base import Version
from ..ruleset import RuleSet
from .documents import MAX_VALUES, Document
from .faults import Fault, Place, TooManyFaults, WrongFile
from .rows import AccessRow, RowReader

#: The name of the standard input.
STDIN: Final = "-"


class FileBounds(NamedTuple):
    """Maxima of a file. values: all texts, numbers, lists and groups. rows: tiers, rules, limits and access entries."""

    values: int = MAX_VALUES
    rows: int = MAX_VALUES


#: For files that a command reads: nobody waits for a response.
OF_COMMANDS: Final = FileBounds()


@dataclass(frozen=True)
class RulesFile:
    """A valid file.

    digest: of its text. tiers, rules: as in a snapshot. access: its entries. doubts: errors by the slug of a rule that
    names a view or an identity that the project does not have: such a rule is not applied, but may stay. warnings: what
    may be right. tier_places: by slug. references: the names, such as “*few”, with which a tier or rule refers to what
    is written elsewhere, by section and slug. exported: the version of the database that it was exported from; `None` =
    the file does not contain it.
    """

    name: str
    digest: str
    tiers: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, Any]]
    access: Sequence[AccessRow]
    doubts: Mapping[str, Sequence[Fault]]
    warnings: Sequence[Fault]
    tier_places: Mapping[str, Place]
    references: Mapping[tuple[str | int, ...], Collection[str]]
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
            raise WrongFile(self.name, [fault for faults in self.doubts.values() for fault in faults])


def load(path: str | Path) -> RulesFile:
    """Return the rules file of this name; "-" = standard input. Raises WrongFile, OSError, and LibraryMissing."""
    data = sys.stdin.buffer.read() if str(path) == STDIN else Path(path).read_bytes()
    return read(decoded(data, str(path)), str(path))


def decoded(data: bytes, name: str) -> str:
    """Return the text of a file. Raises WrongFile unless it is UTF-8."""
    if b"\0" in data[:4]:  # UTF-16 or UTF-32: one of the first bytes is zero
        raise WrongFile(name, [Fault(Place(1, 1), _("This is UTF-16. Save the file as UTF-8."))])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        place = Place(before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1)
        raise WrongFile(name, [Fault(place, _("Not UTF-8."))]) from error


def read(text: str, name: str, bounds: FileBounds = OF_COMMANDS) -> RulesFile:
    """Return the rules of this text. Raises WrongFile, and LibraryMissing.

    name: of the file in errors. It is JSON if its name or its first character says so, else YAML.
    """
    is_json = name.endswith(".json") or (not name.endswith((".yaml", ".yml")) and text.lstrip()[:1] in ("{", "["))
    document = Document(text.removeprefix("\ufeff"), name, is_json=is_json, most=bounds.values)
    if _count(document.data) > bounds.rows:
        excess = _(
            "There are more than %(count)d tiers, rules, limits and access entries. Apply such a file with "
            "`manage.py ratelimit apply`."
        )
        raise WrongFile(name, [Fault(Place(1, 1), excess % {"count": bounds.rows})])
    rows = RowReader(document)
    with suppress(TooManyFaults):
        rows.read()
    if rows.faults:
        raise WrongFile(name, [*rows.faults, *(fault for found in rows.doubts.values() for fault in found)])
    exported = None
    if "exported_version" in document.data:
        number, _at, epoch = document.data["exported_version"].partition("@")
        exported = Version(int(number), int(epoch))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    places = {slug: document.keys["tiers", slug] for slug in document.data.get("tiers") or ()}
    found = (rows.tiers, rows.rules, rows.access, rows.doubts, rows.warnings, places, document.references)
    return RulesFile(name, digest, *found, exported)


def _count(data: Any) -> int:
    """Return the number of tiers, rules, limits and access entries."""
    if not isinstance(data, dict):
        return 0
    sections = [found for found in map(data.get, ("tiers", "rules", "access")) if isinstance(found, dict | list)]
    rules = data["rules"].values() if isinstance(data.get("rules"), dict) else ()
    limits = [rule.get("limits") for rule in rules if isinstance(rule, dict)]
    return sum(len(found) for found in [*sections, *limits] if isinstance(found, dict | list))
