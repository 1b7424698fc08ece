"""Making rows equal to a snapshot. Rows that stay keep their primary keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ..storage import primary
from ..tables import models
from .snapshots import Data, Pair, Snapshot, changed_pairs, limit_columns, meaning_of, normal_rule, normal_tier


def write(now: Snapshot, planned: Snapshot) -> None:
    """Make the rows, which are those of `now`, equal to `planned`. Only differences are written.

    Rows are saved one by one, so that signals are sent. Call it in a transaction, within `editing`.
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
            _write_rule(rules, tiers, pair)
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


def _write_rule(rows: Mapping[str, Any], tiers: Mapping[str, Any], pair: Pair) -> None:
    after: Any = pair.after
    row = _row_of(rows, pair) or models.Rule()
    _assign(row, {name: value for name, value in after.items() if name != "limits"})
    _write_limits(row, pair.before["limits"] if pair.before else [], after["limits"], tiers)


def _row_of(rows: Mapping[str, Any], pair: Pair) -> Any:
    """Return the existing row, perhaps under another slug; one that cannot be enforced has no `before`."""
    return rows.get(pair.before["slug"] if pair.before else pair.after["slug"])  # type: ignore[index]


def _assign(row: Any, data: Data) -> None:
    for name, value in data.items():
        setattr(row, name, value)
    row.save(using=primary())


def _write_limits(rule: Any, before: Sequence[Data], after: Sequence[Data], tiers: Mapping[str, Any]) -> None:
    """Delete and insert the limits that differ: two may have swapped their windows, which are unique.

    Their order is that of their primary keys, and clients can see it.
    """
    if before == after:
        return
    rows = models.RuleLimit.objects.using(primary()).filter(rule=rule)
    keys = list(rows.order_by("pk").values_list("pk", flat=True))
    if len(keys) != len(before):  # the rule could not be enforced, so its limits were not compared
        before = [{}] * len(keys)
    places = _places(before, after)
    equal = {
        keys[place] for place, data in zip(places, after, strict=True) if place is not None and before[place] == data
    }
    rows.exclude(pk__in=equal).delete()
    for place, data in zip(places, after, strict=True):
        key = None if place is None else keys[place]
        if key in equal:
            continue
        values = {name: data[name] for name in limit_columns()}
        window = values.pop("window_seconds")
        tier = None if data["tier"] is None else tiers[data["tier"]]
        row = models.RuleLimit(pk=key, rule=rule, tier=tier, window_seconds=window and Decimal(window), **values)
        row.save(using=primary(), force_insert=True)


def _places(before: Sequence[Data], after: Sequence[Data]) -> list[int | None]:
    """Return which limit of `before` each limit of `after` continues, in order; `None` = it is new, and comes last."""
    places: list[int | None] = []
    start = 0
    for data in after:
        found = next((place for place in range(start, len(before)) if _is_same(before[place], data)), None)
        places.append(found)
        start = start if found is None else found + 1
    if None in places and any(place is not None for place in places[places.index(None) :]):
        return [place if place < len(before) else None for place in range(len(after))]  # only this keeps the order
    return places


def _is_same(before: Data, after: Data) -> bool:
    return bool(before) and (before["tier"], meaning_of(before)) == (after["tier"], meaning_of(after))
