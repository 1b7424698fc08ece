"""The changes that a rules file would make: rules, tiers and access entries, as text and as fields."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext as _

from ...engine.base import Version
from ...models import Rule
from ..formatting import listed
from ..stored import storage
from ..stored.history.back import needed_tiers, planned_snapshot
from ..stored.history.changes import Change, diff, rule_fields, tier_fields
from ..stored.history.log import first_generations
from ..stored.history.snapshots import Data, Snapshot, by_slug, changed_pairs, normal_rule, normal_tier, pairs
from .access import AccessPlan, plan_access
from .faults import Fault, WrongFile
from .reading import RulesFile

#: The owners whose rules are deleted when they are missing in the file.
_FILES: Final = (Rule.Owner.FILE.value, Rule.Owner.UNLOCKED.value)


@dataclass(frozen=True)
class FilePlan:
    """The changes that a file would make. It is valid for the version `seen` and for rows with the digest `state`.

    now, planned: the current and the future rules. changes: of tiers, rules and access entries. drift: changes in the
    database since the rules `base`, when the file was last applied or exported, which would be undone. notes: what
    stays, in sentences.
    """

    file: RulesFile
    seen: Version
    state: str
    now: Snapshot
    planned: Snapshot
    changes: Sequence[Change]
    access: AccessPlan
    base: Snapshot | None
    drift: Sequence[Change]
    notes: Sequence[str]

    @property
    def is_empty(self) -> bool:
        """True if it would change nothing."""
        return not self.changes


def plan_file(file: RulesFile, *, prune: bool = False) -> FilePlan:
    """Return the changes that applying this file to the database would make.

    prune: also delete what is missing in the file: rules of the admin, and tiers without assignments.
    Raises WrongFile if a rule that would be changed names a view that does not exist, or if a tier of the file
    is the default for the same callers as another tier of the database.
    """
    seen = storage.committed_version()
    now = storage.current_rows()
    access = plan_access(file)
    planned = _planned(file, now, prune)
    _check(file, now, planned)
    base = planned if _is_forgotten(file) else _base(file)
    return FilePlan(
        file=file,
        seen=seen,
        state=_digest(now, access.state),
        now=now,
        planned=planned,
        changes=[*diff(now, planned), *access.changes],
        access=access,
        base=base,
        drift=_drift(base, now, planned),
        notes=[*_notes(file, now, planned), *access.notes],
    )


def _planned(file: RulesFile, now: Snapshot, prune: bool) -> Snapshot:
    """Return the future rules: those of the file with their current counters, and those that stay."""
    tiers, rules = ({data["slug"] for data in rows} for rows in (file.tiers, file.rules))
    needed = needed_tiers(now, file.snapshot) if prune else {}
    staying = [data for data in now["tiers"] if data["slug"] not in tiers and (not prune or data["slug"] in needed)]
    kept = [] if prune else [data for data in now["rules"] if data["slug"] not in rules and not _is_of_file(data)]
    then = {"tiers": [*file.tiers, *staying], "rules": [*file.rules, *kept], "left_out": []}
    new = [pair.after["slug"] for pair in pairs(now["rules"], then["rules"]) if pair.after and pair.before is None]
    return planned_snapshot(now, then, set(), first_generations(new))


def _is_of_file(rule: Data) -> bool:
    """Return whether a rule is deleted when it is missing in the file."""
    return rule.get("owner") in _FILES


def _check(file: RulesFile, now: Snapshot, planned: Snapshot) -> None:
    before, after = by_slug(now)[1], by_slug(planned)[1]
    faults = [fault for slug, found in file.doubts.items() if before.get(slug) != after.get(slug) for fault in found]
    faults += _faults_of_defaults(file, planned)
    if faults:
        raise WrongFile(file.name, faults)


def _faults_of_defaults(file: RulesFile, planned: Snapshot) -> Iterator[Fault]:
    ours = {data["slug"] for data in file.tiers}
    defaults = {data["default_for"]: data["slug"] for data in file.tiers if data["default_for"] != "none"}
    for data in planned["tiers"]:
        if data["slug"] not in ours and data["default_for"] in defaults:
            slug = defaults[data["default_for"]]
            text = _(
                "The tier %(other)s of the database is the default for %(kind)s callers, and is not in this file. Add "
                "it here, with “default_for: none”."
            )
            words = {"other": data["slug"], "kind": data["default_for"]}
            yield Fault(file.tier_places[slug], text % words)


def _drift(base: Snapshot | None, now: Snapshot, planned: Snapshot) -> list[Change]:
    """Return the changes since the file was last applied or exported that would be undone."""
    if base is None:
        return []
    undone: dict[tuple[str, str], set[tuple[str, str]] | None] = {}  # by the current row; `None` = all of it
    for subject, normal, fields_of in (("tier", normal_tier, tier_fields), ("rule", normal_rule, rule_fields)):
        for pair in changed_pairs(now[f"{subject}s"], planned[f"{subject}s"], normal):
            data: Any = pair.before or pair.after
            whole = pair.before is None or pair.after is None
            undone[subject, data["slug"]] = None if whole else {each[:2] for each in fields_of(pair)}
    return [
        change
        for change in diff(_without_resets(base), _without_resets(now))
        if _is_undone(change, undone.get((change.subject, change.slug), set()))
    ]


def _without_resets(rules: Snapshot) -> dict[str, Any]:
    """Return these rules as if no counter had been reset: resets are not in files, and are never undone."""
    return {**rules, "rules": [
        {**rule, "limits": [{**limit, "generation": 0} for limit in rule["limits"]]} for rule in rules["rules"]
    ]}  # fmt: skip


def _is_undone(change: Change, fields: set[tuple[str, str]] | None) -> bool:
    """Return whether a change in the database would be undone. fields: that differ; `None` = all."""
    if not fields or change.kind != "changed":
        return fields is None or bool(fields)
    changed = {each[:2] for each in change.fields if each.name != "owner"}  # applying locks the rule again
    return bool(changed & fields) or any(not name for name, _label in changed)


def _base(file: RulesFile) -> Snapshot | None:
    """Return the later of two versions: the one made from a file, and the one that this file was exported from."""
    epoch, number, snapshot = storage.snapshots().exclude(source="").values_list(
        "epoch", "number", "snapshot"
    ).first() or (0, 0, None)
    if file.exported is not None and (file.exported.epoch, file.exported.number) > (epoch, number):
        return storage.snapshots(file.exported).values_list("snapshot", flat=True).first() or snapshot
    return snapshot


def _is_forgotten(file: RulesFile) -> bool:
    """Return whether the file was exported from a version that this database no longer stores.

    Then the changes since are not known, unless a file was applied later. So all changes of the file count as such.
    """
    exported, oldest = file.exported, storage.snapshots().values_list("epoch", "number").last()
    if exported is None or oldest is None or storage.snapshots().exclude(source="").exists():
        return False
    return bool(exported.epoch == oldest[0] and exported.number < oldest[1])


def _notes(file: RulesFile, now: Snapshot, planned: Snapshot) -> Iterator[str]:
    rules, tiers = ({data["slug"] for data in rows} for rows in (file.rules, file.tiers))
    if file.exported and _is_forgotten(file):
        text = _(
            "The file was exported from version %(number)s, which is not stored any more. So each difference is "
            "treated as a change that was made in the database since then."
        )
        yield text % {"number": file.exported.number}
    if others := [data["slug"] for data in planned["rules"] if data["slug"] not in rules]:
        yield _("Rules of the admin that are not in the file stay: %(names)s.") % {"names": listed(others)}
    if others := [data["slug"] for data in planned["tiers"] if data["slug"] not in tiers]:
        yield _("Tiers that are not in the file stay: %(names)s.") % {"names": listed(others)}
    if faulty := [entry["rule"] for entry in now["left_out"] if entry["rule"] not in rules]:
        text = _("Rules that cannot be enforced stay as they are, not in force: %(names)s.")
        yield text % {"names": listed(faulty)}
    if not now["enforcement"]:
        yield _("All enforcement is stopped until you resume it.")


def _digest(now: Mapping[str, Any], access: str) -> str:
    """Return a digest of everything that a plan depends on."""
    text = json.dumps([by_slug(now), now["left_out"], access], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
