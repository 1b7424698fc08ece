"""Undoing the last change with one click: who has changed the rules, or one of them, and the version before."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Final, NamedTuple

from django.utils.text import Truncator
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...engine.base import Version
from ...models import RuleSetVersion
from ...rules.stored import storage
from ...rules.stored.history import log
from ...rules.stored.history.changes import Change, summary
from ...usage.times import aware, now
from ..viewer import Viewer
from .keys import exact_key_of

#: Time for which the list of rules, and a rule's form, offer to undo a change.
LATELY: Final = timedelta(days=1)
#: Number of latest versions that are searched for the last change.
RECENT: Final = 10
#: Number of earlier versions that the last change is compared with: it may have undone them.
LOOKED_BACK: Final = 2
#: Maximum characters of a version's changes.
MAX_WORDS: Final = 200

_REASON_LENGTH: Final = RuleSetVersion._meta.get_field("reason").max_length or 255


class LastChange(NamedTuple):
    """The latest version with a change, and the one before it. later: number of later changes to other rules."""

    row: Any
    before: Any
    changes: list[Change]
    later: int


class Undo(NamedTuple):
    """The offer on a page. number: of the version to bring back. undone: of the version with the change.

    when_and_who: of the change. what: its changes. later: what else would be undone.
    """

    url: str
    number: int
    undone: int
    when_and_who: str
    what: str
    later: str


def last_change(slug: str | None = None, since: datetime | None = None) -> LastChange | None:
    """Return the last change, which restoring the version before it undoes; `None` = there is none among the latest.

    A change that has itself undone the change before is skipped: undoing it would repeat the mistake.
    slug: of a rule; `None` = any rule or tier. since: an aware time; older versions are ignored.
    At most two queries.
    """
    rows = [*storage.snapshots().defer("snapshot")[: RECENT + 1]]
    recent = [*takewhile(lambda row: since is None or aware(row.created_at) >= since, rows[:-1])]
    found, last, later, end = None, list[Change](), 0, 0
    for place, entry in enumerate(log.iter_entries(rows[:-1] if recent else ())):
        changes = [change for change in entry.changes or () if _is_undone(change)]
        concerned = [each for each in changes if slug is None or (each.subject, each.slug) == ("rule", slug)]
        if found and (concerned or place >= end):
            return None if _are_opposite(concerned, last) else found
        if concerned and place < len(recent):
            found, last, end = LastChange(entry.row, rows[place + 1], changes, later), concerned, place + LOOKED_BACK
        elif place >= len(recent) and not found:
            return None
        later += bool(changes)
    return found


def offered_undo(viewer: Viewer, slug: str | None = None, since: datetime | None = None) -> Undo | None:
    """Return the offer to undo the last change; `None` if there is none, or this user lacks the permissions.

    slug, since: as in `last_change`.
    """
    found = last_change(slug, since) if viewer.may("publish_rule") else None
    url = found and viewer.url("history_bring_back", exact_key_of(found.before))
    if not found or not url:
        return None
    what = Truncator(summary(found.changes)).chars(MAX_WORDS)
    later = _later(found.later) if slug else ""
    return Undo(url, found.before.number, found.row.number, when_and_who(found.row), what, later)


def offered_lately(viewer: Viewer, slug: str | None = None) -> Undo | None:
    """Return the same as `offered_undo`, for changes of the last day."""
    return offered_undo(viewer, slug, now() - LATELY)


def reason_to_bring_back(version: Any, until: Version | None = None) -> str:
    """Return the initial reason: which versions are undone. version: the stored row to restore.

    until: the last of the undone versions; `None` = the latest. If there are many, those that only stopped enforcement
    or reset counters are included as well.
    """
    rows = [*storage.snapshots_after(log.version_of(version)).defer("snapshot")]
    rows, number = [row for row in rows if until is None or log.version_of(row).order <= until.order], version.number
    undone = rows
    if len(rows) <= RECENT:
        undone = [
            each.row for each in log.iter_entries(rows) if each.changes is None or any(map(_is_undone, each.changes))
        ]
    count = len(undone)
    if count != 1:
        text = ngettext(
            "Back to version %(number)s: undo the %(count)s version since.",
            "Back to version %(number)s: undo the %(count)s versions since.",
            count,
        )
        return text % {"number": number, "count": count}
    [row] = undone
    author = row.author.get_username() if row.author else ""
    details = ": ".join(filter(None, (author, row.summary)))
    text = _("Undo version %(number)s") % {"number": row.number}
    return Truncator(f"{text} ({details})" if details else text).chars(_REASON_LENGTH)


def when_and_who(row: Any) -> str:
    """Return how long ago a version was made, and by whom: "5 minutes ago, by ada"."""
    when = ago(aware(row.created_at))
    return _("%(when)s, by %(who)s") % {"when": when, "who": row.author.get_username()} if row.author else when


def ago(moment: datetime) -> str:
    """Return how long ago a time is, as text."""
    if (now() - moment).total_seconds() < 60:
        return _("less than a minute ago")
    return _("%s ago") % timesince(moment, depth=1)


def _are_opposite(changes: list[Change], later: list[Change]) -> bool:
    """Return whether the later changes have undone the others, and changed nothing else."""
    back = {"added": "removed", "removed": "added", "changed": "changed"}
    first = {
        (each.subject, each.slug, each.kind, *sorted((field.name, field.before, field.after) for field in each.fields))
        for each in changes
    }
    second = {
        (each.subject, each.slug, back[each.kind], *sorted((of.name, of.after, of.before) for of in each.fields))
        for each in later
    }
    return first == second


def _is_undone(change: Change) -> bool:
    """Return whether this is restored: not the switch of all enforcement, nor counters that were reset."""
    if change.subject == "enforcement":
        return False
    return change.kind != "changed" or any(field.name != "generation" for field in change.fields)


def _later(count: int) -> str:
    if not count:
        return ""
    text = ngettext(
        "This undoes %(count)s later change as well.", "This undoes %(count)s later changes as well.", count
    )
    return text % {"count": count}
