"""Restoring a version: the rows become those of the version, as one new version."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from ....databases import as_committed
from ....engine.base import Version
from .. import storage
from ..compiler import snapshot_of_rows
from ..versions import editing
from .plan import Plan, plan
from .rows import write
from .snapshots import Snapshot, by_slug


class NotBroughtBack(Exception):
    """Raised if a version is not restored; nothing was changed. The text is the reason."""


class RulesChanged(NotBroughtBack):
    """The rules have changed since the plan was made."""


class NothingToBringBack(NotBroughtBack):
    """The rules are already those of that version."""


def plan_back(version: Version) -> Plan | None:
    """Return the plan to restore a version; `None` if that version is not stored any more."""
    then = storage.snapshots(version).values_list("snapshot", flat=True).first()
    return None if then is None else plan(version, then)


def bring_back(version: Version, seen: Version, author: Any = None, reason: str = "") -> Version:
    """Restore the rules of a version as one new version, and return that. Not within another `editing`.

    seen: the latest version when the user decided this; raises RulesChanged if there is a later one.
    Raises NothingToBringBack if nothing differs, and NotBroughtBack if that version cannot be enforced any more.
    """
    way = plan_back(version)
    if way is None:
        raise NotBroughtBack(_("Version %(number)s is not stored any more.") % {"number": version.number})
    if not way.changes:
        raise NothingToBringBack(_("The rules are those of version %(number)s already.") % {"number": version.number})
    if way.seen != seen:
        raise _changed()
    summary = _("rules brought back from version %(number)s") % {"number": version.number}
    with editing(author, summary, reason):
        number, epoch = storage.state().values_list("number", "epoch").get()
        if Version(number - 1, epoch) != seen:  # ours is the next number, under the lock
            raise _changed()
        try:
            with transaction.atomic(using=storage.primary()):
                write(way.now, way.planned)
        except IntegrityError as error:
            raise NotBroughtBack(
                _("The rows of that version conflict with others: %(error)s") % {"error": error}
            ) from error
        _verify(way.planned)
        return Version(number, epoch)


def _changed() -> RulesChanged:
    return RulesChanged(_("The rules have been changed since you opened this page. Look at the changes again."))


def _verify(planned: Snapshot) -> None:
    """Raise NotBroughtBack unless the rows are now equal to the plan."""
    found = snapshot_of_rows(as_committed)
    if by_slug(found) == by_slug(planned):
        return
    wanted = {rule["slug"] for rule in planned["rules"]}
    reasons = [f"{entry['rule']}: {entry['reason']}" for entry in found["left_out"] if entry["rule"] in wanted]
    text = _("That version cannot be enforced any more. %(reasons)s")
    raise NotBroughtBack(text % {"reasons": " ".join(reasons)})
