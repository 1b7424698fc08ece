"""Restoring a version: the rows become those of the version, as one new version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final

from django.db import router
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ....engine.base import Version
from ...formatting import listed
from .. import storage
from ..tables import models
from .changes import Data, Snapshot, diff, meaning_of, normal_rule, normal_tier, pairs
from .rows import NotApplied, Plan, RulesHaveChanged, replace_rules

#: How the summary of a version begins that has brought an earlier one back.
BROUGHT_BACK: Final = "rules brought back from version"


class NothingToBringBack(NotApplied):
    """The rules are already those of that version."""


def plan_back(version: Version) -> Plan | None:
    """Return the plan to restore a version from the current rows; `None` if that version is not stored any more."""
    then = storage.snapshots(version).values_list("snapshot", flat=True).first()
    if then is None:
        return None
    seen, now = storage.committed_version(), storage.current_rows()
    assigned = needed_tiers(now, then)
    former = cache(lambda: _highest_generations(version))
    planned = planned_snapshot(now, then, set(assigned), lambda slug: former().get(slug, 0))
    notes = [*_notes_on_tiers(now, then, assigned), *_notes_on_rules(now, then)]
    return Plan(seen, now, planned, diff(now, planned), notes)


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
        summary = f"{BROUGHT_BACK} {version.number}"
        return replace_rules(way, summary=summary, author=author, reason=reason)
    except RulesHaveChanged as error:
        text = _("The rules have been changed since you opened this page. Look at the changes again.")
        raise RulesHaveChanged(text) from error


def planned_snapshot(
    now: Snapshot, then: Snapshot, assigned: set[str], generation_of: Callable[[str], int]
) -> Snapshot:
    """Return the future rows: the rules and tiers of `then`, with their current counters.

    assigned: current tiers that stay although `then` lacks them. generation_of: see `rule_again`.
    The switch of all enforcement, and rules that cannot be enforced now, do not change.
    """
    tiers = [normal_tier(data) for data in then["tiers"]]
    for pair in pairs(now["tiers"], then["tiers"]):
        if pair.before and pair.after is None and pair.before["slug"] in assigned:
            tiers.append({**normal_tier(pair.before), "default_for": "none"})
    rules = []
    out_then = {entry["rule"] for entry in then["left_out"]}
    for pair in pairs(now["rules"], then["rules"]):
        if pair.before == pair.after:  # the common case
            rules.append(pair.before)
        elif pair.after:
            rules.append(rule_again(pair.before and normal_rule(pair.before), normal_rule(pair.after), generation_of))
        elif pair.before and pair.before["slug"] in out_then:
            rules.append(normal_rule(pair.before) | {"mode": "off"})
    return {**now, "tiers": tiers, "rules": rules}


def rule_again(now: Data | None, then: Data, generation_of: Callable[[str], int]) -> dict[str, Any]:
    """Return a rule of `then`, with a generation for each limit.

    A current limit keeps its counters. Any other gets the highest generation that the rule has had
    since, which `generation_of` returns by slug, so that a reset of counters is not undone.
    """
    ours = now["limits"] if now else []
    limits = []
    for limit in then["limits"]:
        counting = [each["generation"] for each in ours if meaning_of(each) == meaning_of(limit)]
        former = counting or [generation_of(then["slug"]), *(each["generation"] for each in ours)]
        generation = max(limit["generation"], *former)
        limits.append({**limit, "generation": generation})
    return {"description": (now or {}).get("description", ""), **then, "limits": limits}


def _highest_generations(version: Version) -> dict[str, int]:
    """Return the highest generation that each rule's limits have had since a version, by slug."""
    highest: dict[str, int] = {}
    for snapshot in storage.in_chunks(storage.snapshots_after(version)):
        for rule in snapshot["rules"]:
            for limit in rule["limits"]:
                highest[rule["slug"]] = max(highest.get(rule["slug"], 0), limit.get("generation", 0))
    return highest


def needed_tiers(now: Snapshot, then: Snapshot) -> dict[str, int]:
    """Return the tiers that `then` lacks but that are needed now, by slug, with their number of assignments.

    Needed by assignments, which versions do not contain, or by a rule that cannot be enforced and does not change.
    """
    gone = [pair.before["slug"] for pair in pairs(now["tiers"], then["tiers"]) if pair.before and not pair.after]
    if not gone:
        return {}
    using = router.db_for_write(models.Tier)
    out = [entry["rule"] for entry in now["left_out"]]
    found = {}
    for tier in models.Tier.objects.using(using).filter(slug__in=gone):
        assignments = models.TierAssignment.objects.using(using).filter(tier=tier).count()
        if assignments or models.RuleLimit.objects.using(using).filter(tier=tier, rule__slug__in=out).exists():
            found[tier.slug] = assignments
    return found


def _notes_on_tiers(now: Snapshot, then: Snapshot, assigned: Mapping[str, int]) -> Iterator[str]:
    for slug, count in assigned.items():
        text = ngettext(
            "The tier %(tier)s did not exist then, but %(count)s assignment refers to it. Both are kept.",
            "The tier %(tier)s did not exist then, but %(count)s assignments refer to it. All are kept.",
            count,
        )
        yield text % {"tier": slug, "count": number_format(count, force_grouping=True)}
    again = [pair.after["slug"] for pair in pairs(now["tiers"], then["tiers"]) if pair.after and not pair.before]
    if again:
        text = _("Assignments are not part of a version. Tiers that come back have none: %(tiers)s.")
        yield text % {"tiers": listed(again)}


def _notes_on_rules(now: Snapshot, then: Snapshot) -> Iterator[str]:
    out_now, out_then = ({entry["rule"] for entry in each["left_out"]} for each in (now, then))
    gone = {pair.before["slug"] for pair in pairs(now["rules"], then["rules"]) if pair.before and not pair.after}
    texts = {
        _(
            "Rules that did not exist then are deleted: %(rules)s. The history keeps them, so you can bring them back."
        ): gone - out_then,
        _("Rules that could not be enforced then are switched off: %(rules)s."): gone & out_then,
        _("Rules that could not be enforced then are in no version, and do not come back: %(rules)s."): (
            out_then - gone - out_now
        ),
    }
    yield from (text % {"rules": listed(sorted(slugs))} for text, slugs in texts.items() if slugs)
    if now["enforcement"] and then.get("enforcement", True) is False:
        yield _("All enforcement was stopped then. It is not stopped again.")
    yield from notes_on_now(now, [rule["slug"] for rule in then["rules"]])


def notes_on_now(now: Snapshot, replaced: Collection[str]) -> Iterator[str]:
    """Yield what is not in force now, and stays so. replaced: the slugs of rules that are written."""
    if staying := sorted(entry["rule"] for entry in now["left_out"] if entry["rule"] not in replaced):
        text = _("Rules that cannot be enforced now stay as they are, not in force: %(rules)s.")
        yield text % {"rules": listed(staying)}
    if not now["enforcement"]:
        yield _("All enforcement is stopped until you resume it.")
