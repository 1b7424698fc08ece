"""Restoring a version: the rows become those of the version, as one new version."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from ....engine.base import Version
from .. import storage
from .plan import Plan, plan
from .rows import NotApplied, NotAsPlanned, RulesHaveChanged, replace_rules


class NothingToBringBack(NotApplied):
    """The rules are already those of that version."""


def plan_back(version: Version) -> Plan | None:
    """Return the plan to restore a version; `None` if that version is not stored any more."""
    then = storage.snapshots(version).values_list("snapshot", flat=True).first()
    return None if then is None else plan(version, then)


def bring_back(version: Version, seen: Version, author: Any = None, reason: str = "") -> Version:
    """Restore the rules of a version as one new version, and return that. Not within another `editing`.

    seen: the latest version when the user decided this; raises RulesHaveChanged if there is a later one.
    Raises NothingToBringBack if nothing differs, and NotApplied if that version cannot be enforced any more.
    """
    way, words = plan_back(version), {"number": version.number}
    if way is None:
        raise NotApplied(_("Version %(number)s is not stored any more.") % words)
    if not way.changes:
        raise NothingToBringBack(_("The rules are those of version %(number)s already.") % words)
    try:
        if way.seen != seen:
            raise RulesHaveChanged
        summary = _("rules brought back from version %(number)s") % words
        return replace_rules(way.now, way.planned, seen, summary=summary, author=author, reason=reason)
    except RulesHaveChanged as error:
        text = _("The rules have been changed since you opened this page. Look at the changes again.")
        raise RulesHaveChanged(text) from error
    except NotAsPlanned as error:
        text = _("That version cannot be enforced any more. %(reasons)s")
        raise NotApplied(text % {"reasons": error}) from error
