"""Access entries of a rules file, by value or by a digest that hides the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import router
from django.utils.formats import date_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...identity import digest
from ...models import AccessEntry
from ..stored.history.changes import NOTHING, Change, FieldChange
from .reading import RulesFile
from .rows import AccessRow


@dataclass(frozen=True)
class AccessPlan:
    """Changes of access entries. rows: to save, with the new values. state: the entries that it was made from."""

    changes: Sequence[Change]
    rows: Sequence[AccessEntry]
    notes: Sequence[str]
    state: str


def plan_access(file: RulesFile) -> AccessPlan:
    """Return the differences between the entries of a file and of the database. Entries missing in the file stay."""
    if not file.access:
        return AccessPlan([], [], [], "")
    stored = list(_rows())
    state = str([[row.kind, row.value, row.action, str(row.expires_at), row.reason] for row in stored])
    by_value = {(row.kind, row.value): row for row in stored}
    by_digest = {digest_of(row.kind, row.value): row for row in stored}
    changes, rows, unknown = [], [], 0
    for wanted in file.access:
        row = by_value.get((wanted.kind, wanted.value)) if wanted.value else by_digest.get(wanted.digest)
        if row is None and not wanted.value:
            unknown += 1
        elif fields := tuple(_fields(row, wanted)):
            who = wanted.value or f"{wanted.digest[:8]}…"
            title = _("Access entry %(kind)s %(who)s") % {"kind": wanted.kind, "who": who}
            changes.append(Change("changed" if row else "added", "access", "", title, fields))
            row = row or AccessEntry(kind=wanted.kind, value=wanted.value)
            row.action, row.expires_at = wanted.action, wanted.expires_at
            row.reason = wanted.reason if wanted.value else row.reason
            rows.append(row)
    return AccessPlan(changes, rows, [*_notes(unknown)], state)


def access_rows(*, personal: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of the database. personal: with values and reasons, else with digests instead."""
    for row in _rows():
        found = {"action": row.action, "kind": row.kind}
        yield found | (
            {"value": row.value, "expires_at": row.expires_at, "reason": row.reason}
            if personal
            else {"digest": digest_of(row.kind, row.value), "expires_at": row.expires_at}
        )


def digest_of(kind: str, value: str) -> str:
    """Return the digest of an entry's value. Only a project with the same HASH_KEY can match it."""
    return str(digest(f"access:{kind}:{value}"))  # without its type, which ruamel.yaml does not know


def _rows() -> Any:
    return AccessEntry.objects.using(router.db_for_write(AccessEntry)).order_by("kind", "value")


def _fields(row: AccessEntry | None, wanted: AccessRow) -> Iterator[FieldChange]:
    named = ("action", "expires_at", "reason") if wanted.value else ("action", "expires_at")
    for name in named:
        before, after = (getattr(row, name) if row else None), getattr(wanted, name)
        if before != after and (row is not None or after):
            label = str(capfirst(AccessEntry._meta.get_field(name).verbose_name))  # type: ignore[union-attr]
            yield FieldChange(name, label, _in_words(before), _in_words(after))


def _in_words(value: Any) -> str:
    if value in (None, ""):
        return NOTHING
    return value if isinstance(value, str) else date_format(value, "DATETIME_FORMAT")


def _notes(unknown: int) -> Iterator[str]:
    if unknown:
        text = ngettext(
            "%(count)s access entry of the file is a digest that nobody in this database has, and is left out.",
            "%(count)s access entries of the file are digests that nobody in this database has, and are left out.",
            unknown,
        )
        yield text % {"count": unknown}
