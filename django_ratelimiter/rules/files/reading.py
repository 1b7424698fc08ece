"""Reading a rules file: its tiers, rules and access entries, or all errors with line and column.

It needs no database and no Redis. The models themselves validate the rules.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _

from ...conf import settings
from ...engine.base import Version
from ...models import Rule
from ...values.bounds import MAX_LISTED
from ...values.partitions import IDENTITIES, NAMED
from ..routes import NO_SUCH_SCOPE, unknown_names, views
from ..ruleset import RuleSet
from .faults import Fault, Faults, Place, TooManyFaults, WrongFile, did_you_mean
from .fields import EXPORTED_PATTERN, SECTIONS, VERSION, access_fields, shown
from .rows import Entries, RowReader
from .text.nodes import MAX_NODES, Node, Pairs, tree_of_json
from .text.yaml import tree_of_yaml

#: The name of the standard input.
STDIN: Final = "-"


class FileBounds(NamedTuple):
    """Maxima of a file. values: all texts, numbers, lists and groups. rows: tiers, rules, limits and access entries."""

    values: int = MAX_NODES
    rows: int = MAX_NODES


#: For files that a command reads: nobody waits for a response.
OF_COMMANDS: Final = FileBounds()


class AccessRow(NamedTuple):
    """An access entry of a file. value: empty = the file has only its digest."""

    action: str
    kind: str
    value: str
    expires_at: datetime | None
    reason: str
    digest: str
    place: Place


@dataclass(frozen=True)
class RulesFile:
    """A valid file.

    digest: of its text. tiers, rules: as in a snapshot. access: its entries. doubts: errors by the slug of a rule that
    names a view or an identity that the project does not have: such a rule is not applied, but may stay. warnings: what
    may be right. places: of each tier and rule, by "tier" or "rule" and slug. exported: the version of the database
    that it was exported from; `None` = the file does not contain it.
    """

    name: str
    digest: str
    tiers: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, Any]]
    access: Sequence[AccessRow]
    doubts: Mapping[str, Sequence[Fault]]
    warnings: Sequence[Fault]
    places: Mapping[tuple[str, str], Place]
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
    """Return the rules file of this name; "-" = standard input. Raises WrongFile, OSError, and YamlMissing."""
    if str(path) == STDIN:
        return read(sys.stdin.read(), STDIN)
    data = Path(path).read_bytes()
    if b"\0" in data[:4]:  # UTF-16 or UTF-32: one of the first bytes is zero
        raise WrongFile(str(path), [Fault(Place(1, 1), _("This is UTF-16. Save the file as UTF-8."))])
    try:
        return read(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        before = data[: error.start]
        place = Place(before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1)
        raise WrongFile(str(path), [Fault(place, _("Not UTF-8."))]) from error


def read(text: str, name: str, bounds: FileBounds = OF_COMMANDS) -> RulesFile:
    """Return the rules of this text. Raises WrongFile, and YamlMissing.

    name: of the file in errors. It is JSON if its name or its first character says so, else YAML.
    """
    reader = _Reader(name, bounds.rows)
    is_json = name.endswith(".json") or (not name.endswith((".yaml", ".yml")) and text.lstrip()[:1] in ("{", "["))
    tree = (tree_of_json if is_json else tree_of_yaml)(text, name, bounds.values)
    with suppress(TooManyFaults):
        reader.read(tree)
    if reader.faults:
        raise WrongFile(name, [*reader.faults, *(fault for found in reader.doubts.values() for fault in found)])
    rows = reader.rows
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    found = (rows.tiers, rows.rules, reader.access, reader.doubts, reader.warnings, rows.places)
    return RulesFile(name, digest, *found, reader.exported)


class _Reader:
    """Reads section by section. After an error it continues, to report all errors."""

    def __init__(self, name: str, most_rows: int) -> None:
        self.name = name
        self.faults = Faults()
        self.rows = RowReader(self.faults, most_rows)
        self.access: list[AccessRow] = []
        self.doubts: dict[str, list[Fault]] = {}
        self.warnings: list[Fault] = []
        self.exported: Version | None = None

    def read(self, root: Node) -> None:
        found = self.rows.entries(root, SECTIONS, _("a rules file"))
        if "version" in found and found["version"].node.value != VERSION:
            self._fault(found["version"].node, _("Must be %(version)s.") % {"version": VERSION})
        if "exported_version" in found:
            self._read_exported(found["exported_version"].node)
        if root.value is None or not {"tiers", "rules", "access"} & found.keys():
            self._fault(root, _("A rules file has “rules”, “tiers” or “access”."))
            return
        for slug, entry in self._rows_of(found, "tiers"):
            self.rows.read_tier(slug, entry)
        self.rows.check_defaults()
        for slug, entry in self._rows_of(found, "rules"):
            rule = self.rows.read_rule(slug, entry)
            if rule is not None:
                self._check_views(*rule)
                self._check_identities(*rule)
                if not self.rows.rules[-1]["limits"]:
                    no_limits = _("This rule has no limits, so it applies to nobody yet.")
                    self.warnings.append(Fault(entry.key.place, no_limits))
        if "access" in found:
            self._read_access(found["access"].node)

    def _read_exported(self, node: Node) -> None:
        if not isinstance(node.value, str) or not re.fullmatch(EXPORTED_PATTERN, node.value):
            self._fault(node, _("exported_version: Must be as `export` writes it, such as 12@1795322634345."))
            return
        number, _at, epoch = node.value.partition("@")
        self.exported = Version(int(number), int(epoch))

    def _rows_of(self, found: Entries, section: str) -> Iterator[tuple[str, Any]]:
        if section in found and found[section].node.value is not None:
            yield from self.rows.entries(found[section].node, None, _("entries by slug, such as “search: …”")).items()

    def _check_views(self, rule: Rule, entries: Entries, key: Node) -> None:
        """Add errors for names of views that do not exist. For a scope only a warning, because any code may name it."""
        for unknown in unknown_names(rule):
            field = "path" if unknown.field == "route" else unknown.field
            node = entries[field].node if field in entries else key
            if unknown.field == "scope":  # it may be right, so no choices are offered
                text = NO_SUCH_SCOPE % {"name": unknown.name}
                close = did_you_mean(unknown.name, filter(None, [self._suggests and unknown.close]))
                self.warnings.append(Fault(node.place, f"{text} {close}".strip()))
                continue
            words = {"route": _("No view has the route %(name)s."), "view_name": _("No view has the name %(name)s.")}
            text = words[unknown.field] % {"name": shown(unknown.name)}
            known = ([unknown.close] if unknown.close else _names(unknown.field)) if self._suggests else []
            fault = Fault(node.place, f"{text} {did_you_mean(unknown.name, known)}".strip())
            self.doubts.setdefault(rule.slug, []).append(fault)

    @property
    def _suggests(self) -> bool:
        """Return whether an answer still lists a doubt or warning, so that similar names are worth a search."""
        return len(self.doubts) + len(self.warnings) < MAX_LISTED

    def _check_identities(self, rule: Rule, entries: Entries, key: Node) -> None:
        """Add errors for identities that neither this package nor the project has."""
        known = (*IDENTITIES, *settings.IDENTITIES)
        for name in rule.partition_by:
            if name not in known and name.isidentifier():
                text = _("partition_by: %(word)s is not an identity of this project.") % {"word": shown(name)}
                place = entries["partition_by"].node.place
                fault = Fault(place, f"{text} {did_you_mean(name, (*known, *NAMED)) if self._suggests else ''}".strip())
                self.doubts.setdefault(rule.slug, []).append(fault)

    def _read_access(self, node: Node) -> None:
        if not isinstance(node.value, list | None):
            self._fault(node, _("Must be %(kind)s, not %(value)s.") % {"kind": _("a list"), "value": shown(node.value)})
            return
        seen: dict[tuple[str, str], Place] = {}
        for each in node.value or ():
            if not isinstance(each.value, Pairs):
                self._fault(each, _("An access entry is a group of fields."))
                continue
            row = self.rows.read_access(each, self.rows.entries(each, tuple(access_fields()), _("an access entry")))
            if row is None:
                continue
            key = row["kind"], row["value"] or row["digest"]
            if key in seen:
                self._fault(each, _("This caller already has an entry, in line %(line)s.") % {"line": seen[key].line})
            seen.setdefault(key, each.place)
            self.access.append(AccessRow(**row, place=each.place))

    def _fault(self, node: Node, text: str) -> None:
        self.faults.append(Fault(node.place, text))


def _names(field: str) -> list[str]:
    """Return some names of the project's views, or of their routes, to choose from."""
    found = (
        {getattr(view, "route" if field == "route" else "name", "") for view in views()} if field != "scope" else set()
    )
    return sorted(name for name in found if name and not name.startswith("admin"))
