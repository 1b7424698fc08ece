"""Replacing all rules by planned ones, as one version: by those of a rules file, or of an earlier version.

Rules and tiers that stay keep their primary keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Final

from django.db import IntegrityError, router, transaction
from django.db.models import Q
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ....engine.base import Version
from ...formatting import listed
from ...ruleset import Snapshot
from .. import storage
from ..tables import models
from ..versions import editing
from .changes import Change, Data, Pair, by_slug, changed_pairs, diff, meaning_of, normal_rule, normal_tier, pairs

#: How the summary of a version begins that has brought an earlier one back.
BROUGHT_BACK: Final = "rules brought back from version"


class NotApplied(Exception):
    """Raised if rules are not replaced; nothing was changed. The text is the reason."""


class RulesHaveChanged(NotApplied):
    """The rules have changed since the plan was made."""


@dataclass(frozen=True)
class Plan:
    """Rules that are to replace the current ones.

    seen: the current version; the plan is not valid for any other. now: the current rules. planned: the future ones.
    changes: between the two. notes: what stays, or is not as expected, in sentences.
    """

    seen: Version
    now: Snapshot
    planned: Snapshot
    changes: Sequence[Change]
    notes: Sequence[str]


def replace_rules(
    plan: Plan, *, summary: str, author: Any = None, reason: str = "", others: Iterable[Any] = ()
) -> Version:
    """Make the rows equal to a plan in one transaction, as one version. Not within another `editing`.

    others: rows that are saved with them. Raises NotApplied.
    """
    seen, planned = plan.seen, plan.planned
    with transaction.atomic(using=storage.primary()):
        with editing(author, summary, reason, always=True):  # the plan has changes, perhaps only in `others`
            number, epoch = storage.state().values_list("number", "epoch").get()
            if number != seen.number + 1 or seen.epoch not in (0, epoch):  # under the lock; 0: there was no number yet
                raise RulesHaveChanged
            try:
                with transaction.atomic(using=storage.primary()):
                    write(plan.now, planned)
                    for row in others:
                        row.save()
            except IntegrityError as error:
                raise NotApplied(_("The database rejects it: %(error)s") % {"error": error}) from error
        version = Version(number, epoch)
        found = storage.snapshots(version).values_list("snapshot", flat=True).get()
        if by_slug(found) != by_slug(planned):
            wanted = {rule["slug"] for rule in planned["rules"]}
            reasons = [f"{entry['rule']}: {entry['reason']}" for entry in found["left_out"] if entry["rule"] in wanted]
            text = _("Nothing was changed, because the rules would not be in force as planned. %(reasons)s")
            raise NotApplied(text % {"reasons": " ".join(reasons)})
    return version


def write(now: Snapshot, planned: Snapshot) -> None:
    """Make the rows, which are those of `now`, equal to `planned`. Only differences are written.

    The signals of `save` and `delete` are sent for each row. Call it in a transaction, within `editing`.
    """
    tier_pairs = changed_pairs(now["tiers"], planned["tiers"], normal_tier)
    rule_pairs = changed_pairs(now["rules"], planned["rules"], normal_rule)
    _write_tiers(tier_pairs)
    rules = {row.slug: row for row in models.Rule.objects.using(storage.primary()).filter(slug__in=_slugs(rule_pairs))}
    for pair in rule_pairs:
        if pair.before and pair.after is None:
            rules[pair.before["slug"]].delete()
    tiers = {row.slug: row for row in models.Tier.objects.using(storage.primary())}
    for pair in rule_pairs:
        if pair.after:
            _write_rule(_row_of(rules, pair) or models.Rule(), tiers, pair)
    for pair in tier_pairs:
        if pair.before and pair.after is None:
            tiers[pair.before["slug"]].delete()


def _slugs(pairs: Sequence[Pair]) -> set[str]:
    return {data["slug"] for pair in pairs for data in pair if data}


def _write_tiers(pairs: Sequence[Pair]) -> None:
    """Write the planned tiers. Two may swap what they are the default for, which is unique."""
    rows = {row.slug: row for row in models.Tier.objects.using(storage.primary()).filter(slug__in=_slugs(pairs))}
    nobody = models.Tier.DefaultFor.NONE
    models.Tier.objects.using(storage.primary()).filter(slug__in=rows).exclude(default_for=nobody).update(
        default_for=nobody
    )
    for pair in pairs:
        if pair.after:
            row = _row_of(rows, pair) or models.Tier()
            _assign(row, pair.after)


def _write_rule(row: Any, tiers: Mapping[str, Any], pair: Pair) -> None:
    """Write a rule with its limits, the first one first: callers see them in this order."""
    after: Any = pair.after
    has_other_limits = pair.before is None or pair.before["limits"] != after["limits"]
    if row.pk and has_other_limits:
        models.RuleLimit.objects.using(storage.primary()).filter(rule=row).delete()
    _assign(row, {name: value for name, value in after.items() if name != "limits"})
    for data in after["limits"] if has_other_limits else ():
        window = data["window_seconds"]
        tier = None if data["tier"] is None else tiers[data["tier"]]
        limit = models.RuleLimit(rule=row)
        _assign(limit, {**data, "tier": tier, "window_seconds": window and Decimal(window)})


def _row_of(rows: Mapping[str, Any], pair: Pair) -> Any:
    """Return the existing row, perhaps under another slug; one that cannot be enforced has no `before`."""
    return rows.get(pair.before["slug"] if pair.before else pair.after["slug"])  # type: ignore[index]


def _assign(row: Any, data: Data) -> None:
    for name, value in data.items():
        setattr(row, name, value)
    row.save(using=storage.primary())


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
    return {**then, "limits": limits}


def _highest_generations(version: Version) -> dict[str, int]:
    """Return the highest generation that each rule's limits have had since a version, by slug."""
    highest: dict[str, int] = {}
    later = Q(epoch__gt=version.epoch) | Q(epoch=version.epoch, number__gt=version.number)
    for snapshot in storage.in_chunks(storage.snapshots().filter(later)):
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
