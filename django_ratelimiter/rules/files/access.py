"""Access entries of a rules file, by value or by a digest that hides the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import router
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...identity import digest
from ...models import AccessEntry
from ..stored.history.changes import NOTHING, FieldChange
from .reading import RulesFile
from .rows import AccessRow


class AccessChange(NamedTuple):
    """An entry that is added or changed. row: the current one; `None` = it is added."""

    row: AccessEntry | None
    wanted: AccessRow
    fields: tuple[FieldChange, ...]

    @property
    def kind(self) -> str:
        """Return "added" or "changed"."""
        return "changed" if self.row else "added"

    @property
    def title(self) -> str:
        """Return the caller; the start of the digest if the file contains only that."""
        who = self.wanted.value if self.wanted.value else f"{self.wanted.digest[:8]}…"
        return _("Access entry %(kind)s %(who)s") % {"kind": self.wanted.kind, "who": who}

    @property
    def in_words(self) -> str:
        """Return the change in one sentence."""
        if self.row is None:
            return f"{self.title} {_('added')}"
        return f"{self.title}: {'; '.join(field.in_words for field in self.fields)}"


@dataclass(frozen=True)
class AccessPlan:
    """Changes of access entries. state: a digest of what they were made from."""

    changes: Sequence[AccessChange]
    notes: Sequence[str]
    state: str


def plan_access(file: RulesFile) -> AccessPlan:
    """Return the differences between the entries of a file and of the database. Entries missing in the file stay."""
    if not file.access:
        return AccessPlan([], [], "")
    rows = {(row.kind, row.value): row for row in _rows()}
    by_digest = {digest_of(row.kind, row.value): row for row in rows.values()}
    changes, unknown = [], 0
    for wanted in file.access:
        row = rows.get((wanted.kind, wanted.value)) if wanted.value else by_digest.get(wanted.digest)
        if row is None and not wanted.value:
            unknown += 1
            continue
        fields = tuple(_fields(row, wanted))
        if fields:
            changes.append(AccessChange(row, wanted, fields))
    state = [[row.kind, row.value, row.action, str(row.expires_at), row.reason] for row in rows.values()]
    return AccessPlan(changes, [*_notes(unknown)], str(sorted(state)))


def write_access(plan: AccessPlan) -> None:
    """Save the entries that are added or changed, one by one."""
    for change in plan.changes:
        wanted = change.wanted
        row = change.row or AccessEntry(kind=wanted.kind, value=wanted.value)
        row.action, row.expires_at = wanted.action, wanted.expires_at
        if wanted.value:
            row.reason = wanted.reason
        row.save()


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
    return digest(f"access:{kind}:{value}")


def _rows() -> Any:
    return AccessEntry.objects.using(router.db_for_write(AccessEntry)).order_by("kind", "value")


def _fields(row: AccessEntry | None, wanted: AccessRow) -> Iterator[FieldChange]:
    named = ("action", "expires_at", "reason") if wanted.value else ("action", "expires_at")
    for name in named:
        before, after = (getattr(row, name) if row else None), getattr(wanted, name)
        if before != after and (row is not None or after):
            label = str(AccessEntry._meta.get_field(name).verbose_name)  # type: ignore[union-attr]
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
