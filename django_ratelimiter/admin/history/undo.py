"""Versions in URLs, what restoring one takes, and the way back with one click."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.contrib.auth import get_permission_codename
from django.contrib.auth.models import Permission
from django.http import Http404, HttpRequest
from django.utils.text import Truncator

from ...engine.base import Version
from ...models import AccessEntry, Rule, RuleLimit, Tier
from ...rules.stored import storage
from ...rules.stored.history import log
from ...rules.stored.history.back import BROUGHT_BACK
from ...rules.stored.history.changes import Change, summary
from ...rules.stored.storage import snapshots
from ...usage.times import aware, now
from ..formatting import when_and_who
from ..viewer import Viewer

_KEY: Final = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")


def key_of(version: Any) -> str:
    """Return a version's key in URLs: its number and epoch."""
    return f"{version.number}-{version.epoch}"


def version_named(key: str) -> Version:
    """Return the version of a key with an epoch. Raises Http404 if there is none."""
    found = _KEY.fullmatch(key)
    if not found or not found[2]:
        raise Http404
    return Version(int(found[1]), int(found[2]))


def row_named(key: str) -> Any:
    """Return the stored version with this key, or the latest with this number. Raises Http404 if there is none."""
    found = _KEY.fullmatch(key)
    if not found:
        raise Http404
    rows = snapshots().filter(number=int(found[1])).prefetch_related("author")
    row = (rows.filter(epoch=int(found[2])) if found[2] else rows).first()
    if row is None:
        raise Http404
    return row


PUBLISH: Final = "django_ratelimiter.publish_rule"

_MODELS: Final = {"rule": Rule, "tier": Tier, "access": AccessEntry}
_ACTIONS: Final = {"added": "add", "changed": "change", "removed": "delete"}


def missing_permissions(request: HttpRequest, changes: Iterable[Change]) -> list[str]:
    """Return the names of the permissions that this user lacks for these changes, as in Django's lists."""
    needed = {codename for change in changes for codename in _needed(change)}
    lacking = sorted(name for name in needed if not request.user.has_perm(f"{Rule._meta.app_label}.{name}"))
    if not lacking:
        return []
    rows = Permission.objects.filter(content_type__app_label=Rule._meta.app_label, codename__in=lacking)
    return [row.name for row in rows.order_by("name")] or lacking


def _needed(change: Change) -> set[str]:
    if change.subject == "enforcement":  # it is never restored
        return set()
    action = _ACTIONS[change.kind]
    needed = {get_permission_codename(action, _MODELS[change.subject]._meta)}
    limits = [field for field in change.fields if field.name == "limits"]
    if change.subject == "rule" and change.kind != "removed" and limits:  # a deleted rule's limits are deleted with it
        needed.add(get_permission_codename("add" if change.kind == "added" else "change", RuleLimit._meta))
    return needed


#: Time for which the list of rules, and a rule's form, offer to undo a change.
LATELY: Final = timedelta(days=1)
#: Maximum characters of a version's changes.
MAX_WORDS: Final = 200


class Undo(NamedTuple):
    """The offer on a page. number: of the version to bring back. undone: of the version with the change.

    when_and_who: of the change. what: its changes.
    """

    url: str
    number: int
    undone: int
    when_and_who: str
    what: str


def offered_undo(viewer: Viewer, slug: str | None = None, *, lately: bool = False) -> Undo | None:
    """Return the offer to undo the last change; `None` if there is none, or this user lacks the permissions.

    Not of a change that has itself brought a version back: undoing it would repeat the mistake. At most two queries.
    slug: of a rule; `None` = any rule or tier. lately: only of a change of the last day.
    """
    if not viewer.may("publish_rule"):
        return None
    rows = [*storage.snapshots().defer("snapshot")[: log.RECENT + 1]]
    recent = [row for row in rows[:-1] if not lately or aware(row.created_at) >= now() - LATELY]
    for entry, before in zip(log.entries_of(recent), rows[1:], strict=False):
        changes = [change for change in entry.changes or () if _is_undone(change)]
        if any(slug is None or (change.subject, change.slug) == ("rule", slug) for change in changes):
            url = viewer.url("history_bring_back", key_of(before))
            if not url or entry.row.summary.startswith(BROUGHT_BACK):
                return None
            what = Truncator(summary(changes)).chars(MAX_WORDS)
            return Undo(url, before.number, entry.row.number, when_and_who(entry.row), what)
    return None


def _is_undone(change: Change) -> bool:
    """Return whether this is restored: not the switch of all enforcement, nor counters that were reset."""
    if change.subject == "enforcement":
        return False
    return change.kind != "changed" or any(field.name != "generation" for field in change.fields)
