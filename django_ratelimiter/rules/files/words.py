"""A plan as lines for a terminal, and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from difflib import unified_diff
from typing import Any, Final

from django.utils.translation import gettext as _

from ...models import Rule
from ..stored.compiler import rule_data
from ..stored.history.changes import Change, rule_fields
from ..stored.history.snapshots import Pair, changed_pairs, normal_rule, normal_tier
from .planning import FilePlan
from .writing import lines_of_row

_SIGNS: Final = {"added": "+", "changed": "~", "removed": "-"}


def lines_of(plan: FilePlan) -> Iterator[str]:
    """Yield the lines of a plan."""
    version = _("version %(number)s") % {"number": plan.seen.number} if plan.seen.number else _("no rules")
    yield _("%(file)s, compared with the database (%(version)s):") % {"file": plan.file.name, "version": version}
    yield ""
    for change in plan.changes:
        yield from _lines_of_change(change)
    if plan.drift:
        yield _("Changed in the database since the file was last applied or exported; the file would undo this:")
        yield from drift_of(plan)
        yield ""
    yield from plan.notes
    yield summary_of(plan)


def drift_of(plan: FilePlan) -> Iterator[str]:
    """Yield a line for each change of the database that the file would undo, how their rows differ, and what to do."""
    for each in plan.drift:
        yield f"  ! {_named(each)}{each.in_words.removeprefix(each.title)}"
        if names := plan.file.references.get((f"{each.subject}s", each.slug)):
            text = _("It uses %(names)s in the file. Write these lines out there, or other entries change, too.")
            yield f"    {text % {'names': ', '.join(sorted(names))}}"
    if not plan.drift:
        return
    yield _("To keep such a change, add its lines with “+” to the file, and remove those with “-”.")
    yield _("To undo it, apply the file with --overwrite, or with --plan and a plan that has shown it.")
    drifted, style = {(each.subject, each.slug) for each in plan.drift}, plan.file.name.rpartition(".")[2]
    yield from (f"--- {plan.file.name}", f"+++ {_('database')}")
    for subject, normal in (("tier", normal_tier), ("rule", normal_rule)):
        section = f"{subject}s"
        for before, after in changed_pairs(plan.base[section], plan.now[section], normal) if plan.base else ():
            if (subject, (after or before or {})["slug"]) in drifted:
                then, now = (lines_of_row(section, data, style) for data in (before, after))
                # Without its header, and line numbers, which are not those of the file.
                yield from (line for line in [*unified_diff(then, now, n=99, lineterm="")][2:] if line[:2] != "@@")


def summary_of(plan: FilePlan) -> str:
    """Return the last line of a plan: how much it changes."""
    if plan.is_empty:
        return _("No changes. The database matches the file.")
    count = Counter[str](change.kind for change in plan.changes)
    text = _("Plan: %(added)s to add, %(changed)s to change, %(removed)s to delete.")
    return text % {kind: count[kind] for kind in _SIGNS}


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


def _lines_of_change(change: Change) -> Iterator[str]:
    yield f"{_SIGNS[change.kind]} {_named(change)}: {change.kind_in_words}"
    usual = _usual_fields()
    for field in change.fields:
        side = field.after if change.kind == "added" else field.before
        if change.kind == "changed":
            yield f"    {field.in_words}"
        elif (field.name, side) not in usual:
            yield f"    {field.label}: {side}"
    yield ""


def _named(change: Change) -> str:
    return change.title + (f" ({change.slug})" if change.slug not in ("", change.name) else "")


def _usual_fields() -> set[tuple[str, str]]:
    """Return the names and defaults of a new rule's fields. The mode is not included: it is always shown."""
    usual = rule_data(Rule(owner=Rule.Owner.FILE), ())
    return {(field.name, field.after) for field in rule_fields(Pair(None, usual)) if field.name != "mode"}


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
