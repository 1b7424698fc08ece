"""Making rows equal to a snapshot, as one version. Rules and tiers that stay keep their primary keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from ....engine.base import Version
from ..storage import primary, snapshots, state
from ..tables import models
from ..versions import editing
from .changes import Change, Data, Pair, Snapshot, by_slug, changed_pairs, normal_rule, normal_tier


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
    with transaction.atomic(using=primary()):
        with editing(author, summary, reason, always=True):  # the plan has changes, perhaps only in `others`
            number, epoch = state().values_list("number", "epoch").get()
            if number != seen.number + 1 or seen.epoch not in (0, epoch):  # under the lock; 0: there was no number yet
                raise RulesHaveChanged
            try:
                with transaction.atomic(using=primary()):
                    write(plan.now, planned)
                    for row in others:
                        row.save()
            except IntegrityError as error:
                raise NotApplied(_("The database rejects it: %(error)s") % {"error": error}) from error
        version = Version(number, epoch)
        found = snapshots(version).values_list("snapshot", flat=True).get()
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
    rules = {row.slug: row for row in models.Rule.objects.using(primary()).filter(slug__in=_slugs(rule_pairs))}
    for pair in rule_pairs:
        if pair.before and pair.after is None:
            rules[pair.before["slug"]].delete()
    tiers = {row.slug: row for row in models.Tier.objects.using(primary())}
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
    rows = {row.slug: row for row in models.Tier.objects.using(primary()).filter(slug__in=_slugs(pairs))}
    nobody = models.Tier.DefaultFor.NONE
    models.Tier.objects.using(primary()).filter(slug__in=rows).exclude(default_for=nobody).update(default_for=nobody)
    for pair in pairs:
        if pair.after:
            row = _row_of(rows, pair) or models.Tier()
            _assign(row, pair.after)


def _write_rule(row: Any, tiers: Mapping[str, Any], pair: Pair) -> None:
    """Write a rule with its limits, the first one first: callers see them in this order."""
    after: Any = pair.after
    has_other_limits = pair.before is None or pair.before["limits"] != after["limits"]
    if row.pk and has_other_limits:
        models.RuleLimit.objects.using(primary()).filter(rule=row).delete()
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
    row.save(using=primary())
