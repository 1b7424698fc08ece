"""The stored versions, the latest first, each with its changes: the difference from the version before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ....engine.base import Version
from .. import storage
from .changes import Change, diff, summary

#: Number of versions that are searched at a time for those that changed a rule.
LOOKED_THROUGH: Final = 25
#: Number of latest versions that are searched for the last change of a rule or tier.
RECENT: Final = 10


class VersionEntry(NamedTuple):
    """A stored version. changes: `None` = not known, because it is the oldest one."""

    row: Any
    changes: list[Change] | None

    @property
    def in_words(self) -> str:
        """Return the changes as a sentence."""
        return summary(self.changes or [])


class RuleEntry(NamedTuple):
    """A version that changed a rule, and the change. before: the previous version."""

    row: Any
    before: Any
    change: Change


def version_of(row: Any) -> Version:
    """Return the number and epoch of a stored version."""
    return Version(row.number, row.epoch)


def rows() -> Any:
    """Return the stored versions, the latest first, with their authors but without their snapshots."""
    return storage.snapshots().defer("snapshot")


def entries_of(page: Sequence[Any]) -> Iterator[VersionEntry]:
    """Yield entries for these consecutive versions, the latest first, in one query.

    The changes of a version are computed only when it is reached.
    """
    if not page:
        return
    snapshots = storage.in_chunks(storage.snapshots_until(version_of(page[0])), len(page) + 1)
    after = next(snapshots, None)
    for row in page:
        before = next(snapshots, None)
        yield VersionEntry(row, None if before is None or after is None else diff(before, after))
        after = before


def row_before(version: Version) -> Any:
    """Return the stored version before this one; `None` = there is none."""
    earlier = [*storage.snapshots_until(version).defer("snapshot")[:2]]
    return earlier[1] if len(earlier) == 2 else None


def past_of_rule(slug: str, start: Version | None) -> tuple[list[RuleEntry], str, Version | None]:
    """Return the versions that changed this rule: among the latest, or among those from `start` back.

    Also returns the slug of the rule before them, and where to continue the search; `None` = there are no more. A
    renamed rule is followed, unless another one has had its name as well.
    """
    first = start or Version(*(storage.snapshots().values_list("number", "epoch").first() or (0,)))
    page = [*storage.snapshots_until(first).defer("snapshot")[: LOOKED_THROUGH + 1]]
    entries: list[RuleEntry] = []
    for entry, before in zip(entries_of(page[:LOOKED_THROUGH]), page[1:], strict=False):
        for change in entry.changes or ():
            former = [field.before for field in change.fields if field.name == "slug"]
            if change.subject == "rule" and slug in (change.slug, *former):
                entries.append(RuleEntry(entry.row, before, change))
                slug = former[0] if former and change.kind == "changed" else slug
                break
    return entries, slug, version_of(page[-1]) if len(page) > LOOKED_THROUGH else None


def latest_change_of(subject: str, slug: str) -> Any:
    """Return the version that changed this rule or tier last, among the latest few; `None` = none of them did."""
    for entry in entries_of(rows()[:RECENT]):
        if any((change.subject, change.slug) == (subject, slug) for change in entry.changes or ()):
            return entry.row
    return None
