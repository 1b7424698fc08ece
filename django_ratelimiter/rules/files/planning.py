"""The changes that a rules file would make, as fields, lines and JSON; and making them: completely, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import router, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from ...engine.base import Version
from ...models import AccessEntry, Rule, RuleSetVersion
from ...values.terminal import on_terminal
from ..formatting import listed
from ..ruleset import Snapshot
from ..stored import storage
from ..stored.compiler import rule_data
from ..stored.history.back import (
    NotApplied,
    Plan,
    RulesHaveChanged,
    needed_tiers,
    notes_on_now,
    planned_snapshot,
    replace_rules,
)
from ..stored.history.changes import ACCESS_FIELDS, Change, Pair, access_fields, by_slug, diff, pairs, rule_fields
from .rows import RulesFile, WrongFile, bounded

_SIGNS: Final = {"added": "+", "changed": "~", "removed": "-"}


@dataclass(frozen=True)
class FilePlan(Plan):
    """The changes that a file would make, those of access entries too. It is valid for rows with the digest `state`.

    access: the entries to save. drift: changes in the database since the file was last applied or exported, which would
    be undone.
    """

    file: RulesFile
    state: str
    access: Sequence[AccessEntry]
    drift: Sequence[Change]

    @property
    def is_empty(self) -> bool:
        """True if it would change nothing."""
        return not self.changes


def plan_file(file: RulesFile, *, delete: bool = False) -> FilePlan:
    """Return the changes that applying this file to the database would make.

    delete: also delete the rules that are missing in the file, and tiers without assignments.
    Raises WrongFile if a rule that would be changed names a view that does not exist, if a tier of the file is the
    default for the same callers as another tier of the database, or if rules may be missing by mistake and be deleted.
    """
    if delete and file.miscounted:
        raise WrongFile(file.name, [file.miscounted])
    seen = storage.committed_version()
    now = storage.current_rows()
    rows = AccessEntry.objects.using(router.db_for_write(AccessEntry)).order_by("kind", "value")
    stored = [*rows] if file.access else []
    planned = _planned(file, seen, now, delete)
    _check(file, now, planned)
    entries = [*_access_changes(file.access, stored)]
    base, changes = _base(file, seen, planned), diff(now, planned)
    return FilePlan(
        file=file,
        seen=seen,
        state=_digest(now, stored),
        now=now,
        planned=planned,
        changes=[*changes, *(change for change, _row in entries)],
        access=[row for _change, row in entries],
        drift=_drift(base, now, changes),
        notes=[*_notes(file, now, planned, is_forgotten=base is planned)],
    )


def apply_file(
    file: RulesFile,
    *,
    author: Any = None,
    reason: str = "",
    delete: bool = False,
    expected: str | None = None,
    overwrite: bool = True,
) -> tuple[FilePlan, Version | None]:
    """Make the rows that this file names equal to it, in one transaction, as one version. Not within another `editing`.

    Returns the plan, and the new version; `None` = there was no difference, so no version was made.
    expected: the `state` of the approved plan; raises RulesHaveChanged if it differs.
    overwrite: also undo changes in the database since the file was last applied or exported.
    Raises WrongFile, and NotApplied if it would undo such changes, or the database rejects the rows.
    """
    with transaction.atomic(using=storage.primary()):
        storage.state().update(number=F("number"))  # takes the lock, so that nobody else can save rules meanwhile
        plan = plan_file(file, delete=delete)
        if expected is not None and plan.state != expected:
            raise RulesHaveChanged(_("The database has changed since the plan was made. Make the plan again."))
        if plan.is_empty:
            return plan, None
        if plan.drift and not overwrite:
            text = _("Nothing was changed. The file would undo changes that were made in the database in the meantime:")
            raise NotApplied(on_terminal([text, *drift_of(plan)]))
        name = os.path.basename(file.name)
        words = {"summary": f"rules applied from {name}", "author": author, "reason": reason}
        version = replace_rules(plan, others=plan.access, **words)
        storage.snapshots(version).update(source=name[: RuleSetVersion.source.field.max_length])
        return plan, version


def _access_changes(
    wanted: Iterable[AccessEntry], stored: Iterable[AccessEntry]
) -> Iterator[tuple[Change, AccessEntry]]:
    """Yield the changes of access entries, each with the row to save."""
    rows = {(row.kind, row.value): row for row in stored}
    for entry in wanted:
        row = rows.get((entry.kind, entry.value))
        sides = ({name: getattr(each, name) for name in ACCESS_FIELDS} if each else None for each in (row, entry))
        if fields := access_fields(Pair(*sides)):
            entry.pk = row.pk if row else None
            title = _("Access entry %(kind)s %(who)s") % {"kind": entry.kind, "who": entry.value}
            yield Change("changed" if row else "added", "access", "", title, fields), entry


def _planned(file: RulesFile, seen: Version, now: Snapshot, delete: bool) -> Snapshot:
    """Return the future rules: those of the file with their current counters, and those that stay.

    A new rule gets the number of the version as generation, which no former rule with its slug can have exceeded.
    """
    tiers, rules = ({data["slug"] for data in rows} for rows in (file.tiers, file.rules))
    needed = needed_tiers(now, file.snapshot) if delete else {}
    staying = [data for data in now["tiers"] if data["slug"] not in tiers and (not delete or data["slug"] in needed)]
    kept = [] if delete else [data for data in now["rules"] if data["slug"] not in rules]
    then = {"tiers": [*file.tiers, *staying], "rules": [*file.rules, *kept], "left_out": []}
    new = {pair.after["slug"] for pair in pairs(now["rules"], then["rules"]) if pair.after and pair.before is None}
    return planned_snapshot(now, then, set(), lambda slug: seen.number if slug in new else 0)


def _check(file: RulesFile, now: Snapshot, planned: Snapshot) -> None:
    before, after = by_slug(now)[1], by_slug(planned)[1]
    faults = [fault for slug, found in file.doubts.items() if before.get(slug) != after.get(slug) for fault in found]
    ours = {data["default_for"]: data["slug"] for data in file.tiers if data["default_for"] != "none"}
    slugs = {data["slug"] for data in file.tiers}
    for data in planned["tiers"]:
        if data["slug"] not in slugs and data["default_for"] in ours:
            text = _(
                "The tier %(other)s of the database is the default for %(kind)s callers, and is not in this file. Add "
                "it here, with “default_for: none”."
            )
            words = {"other": data["slug"], "kind": data["default_for"]}
            faults.append(f"tiers.{ours[data['default_for']]}.default_for: {text % words}")
    if faults:
        raise WrongFile(file.name, faults)


def _drift(base: Snapshot | None, now: Snapshot, changes: Sequence[Change]) -> list[Change]:
    """Return the changes of the database since the rules `base` that a plan with these changes would undo."""
    if base is None:
        return []
    slugs = {(each.subject, each.slug): each for each in changes}
    names = {(each.subject, each.name): each for each in changes}
    found = []
    for made in diff(base, now):
        undoing = slugs.get((made.subject, made.slug)) or names.get((made.subject, made.name))
        fields = [{field[:2] for field in each.fields} for each in (made, undoing) if each and each.kind == "changed"]
        if undoing and (len(fields) < 2 or fields[0] & fields[1]):
            found.append(made)
    return found


def _base(file: RulesFile, seen: Version, planned: Snapshot) -> Snapshot | None:
    """Return the rules when the file was last applied or exported, the later of both; `None` = this is not known.

    If the exported version is not stored any more, it is `planned`: each difference counts as a change since then.
    """
    rows = storage.snapshots().exclude(source="").values_list("number", "epoch", "snapshot", named=True)
    exported, applied = file.exported, rows.first()
    if exported is None or (applied and exported.order <= Version(applied.number, applied.epoch).order):
        return applied.snapshot if applied else None
    found: Snapshot | None = storage.snapshots(exported).values_list("snapshot", flat=True).first()
    return found or (planned if exported.epoch == seen.epoch else applied.snapshot if applied else None)


def _notes(file: RulesFile, now: Snapshot, planned: Snapshot, *, is_forgotten: bool) -> Iterator[str]:
    rules, tiers = ({data["slug"] for data in rows} for rows in (file.rules, file.tiers))
    if is_forgotten:
        yield _("The version that the file was exported from is not stored any more.")
    if others := [data["slug"] for data in planned["rules"] if data["slug"] not in rules]:
        text = _("Rules that are not in the file stay: %(names)s. With --delete, they are deleted.")
        yield text % {"names": listed(others)}
    if others := [data["slug"] for data in planned["tiers"] if data["slug"] not in tiers]:
        yield _("Tiers that are not in the file stay: %(names)s.") % {"names": listed(others)}
    yield from notes_on_now(now, rules)


def _digest(now: Snapshot, entries: Iterable[AccessEntry]) -> str:
    """Return a digest of everything that a plan depends on."""
    access = [[row.kind, row.value, *(str(getattr(row, name)) for name in ACCESS_FIELDS)] for row in entries]
    text = json.dumps([by_slug(now), now["left_out"], access], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def lines_of(plan: FilePlan) -> Iterator[str]:
    """Yield the lines of a plan."""
    version = _("version %(number)s") % {"number": plan.seen.number} if plan.seen.number else _("no rules")
    yield _("%(file)s, compared with the database (%(version)s):") % {"file": plan.file.name, "version": version}
    yield ""
    new_rule = rule_data(Rule(owner=Rule.Owner.FILE), ())
    usual = {(field.name, field.after) for field in rule_fields(Pair(None, new_rule)) if field.name != "mode"}
    for change in plan.changes:
        yield f"{_SIGNS[change.kind]} {_named(change)}: {change.kind_in_words}"
        for field in change.fields:
            side = field.after if change.kind == "added" else field.before
            if change.kind == "changed":
                yield f"    {field.in_words}"
            elif (field.name, side) not in usual:
                yield f"    {field.label}: {side}"
        yield ""
    if plan.drift:
        yield _("Changed in the database since the file was last applied or exported; the file would undo this:")
        yield from drift_of(plan)
        yield ""
    yield from plan.notes
    if plan.is_empty:
        yield _("No changes. The database matches the file.")
    else:
        count = Counter[str](change.kind for change in plan.changes)
        text = _("Plan: %(added)s to add, %(changed)s to change, %(removed)s to delete.")
        yield text % {kind: count[kind] for kind in _SIGNS}


def drift_of(plan: FilePlan) -> Iterator[str]:
    """Yield a line for each change of the database that the file would undo, and what to do."""
    yield from bounded([f"  ! {_named(each)}{each.in_words.removeprefix(each.title)}" for each in plan.drift])
    yield _("To keep such a change, write it into the file.")
    yield _("To undo it, apply the file with --overwrite, or with --plan and a plan that has shown it.")


def data_of(plan: FilePlan) -> dict[str, Any]:
    """Return a plan as JSON: what `apply --plan` needs, and the changes."""
    return {
        "format": 1,
        "file": plan.file.name,
        "digest": plan.file.digest,
        "version": plan.seen.number,
        "state": plan.state,
        "changes": [_data_of_change(change) for change in plan.changes],
        "drift": [_data_of_change(change) for change in plan.drift],
        "notes": list(plan.notes),
    }


def _named(change: Change) -> str:
    return change.title + (f" ({change.slug})" if change.slug not in ("", change.name) else "")


def _data_of_change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "subject": change.subject,
        "slug": change.slug or change.title,
        "in_words": change.in_words,
        "fields": [
            {"field": each.name, "label": each.label, "before": each.before, "after": each.after}
            for each in change.fields
        ],
    }
