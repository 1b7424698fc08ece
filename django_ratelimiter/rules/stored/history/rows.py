"""Making rows equal to a snapshot, as one version. Rows that stay keep their primary keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models.signals import post_save, pre_save
from django.utils.translation import gettext as _

from ....engine.base import Version
from ..storage import primary, snapshots, state
from ..tables import models
from ..versions import editing
from .snapshots import Data, Pair, Snapshot, by_slug, changed_pairs, limit_columns, meaning_of, normal_rule, normal_tier


class NotApplied(Exception):
    """Raised if rules are not replaced; nothing was changed. The text is the reason."""


class RulesHaveChanged(NotApplied):
    """The rules have changed since the plan was made."""


def replace_rules(
    now: Snapshot,
    planned: Snapshot,
    seen: Version,
    *,
    summary: str,
    author: Any = None,
    reason: str = "",
    others: Iterable[Any] = (),
) -> Version:
    """Make the rows equal to `planned` in one transaction, as one version. Not within another `editing`.

    now: the rows at the version `seen`. others: rows that are saved with them. Raises NotApplied.
    """
    with transaction.atomic(using=primary()):
        with editing(author, summary, reason, always=True):  # the plan has changes, perhaps only in `others`
            number, epoch = state().values_list("number", "epoch").get()
            if number != seen.number + 1 or seen.epoch not in (0, epoch):  # under the lock; 0: there was no number yet
                raise RulesHaveChanged
            try:
                with transaction.atomic(using=primary()):
                    write(now, planned)
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
    _insert([limit for pair in rule_pairs if pair.after for limit in _write_rule(rules, tiers, pair)])
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


def _write_rule(rows: Mapping[str, Any], tiers: Mapping[str, Any], pair: Pair) -> list[Any]:
    """Write a rule, and return its limits that must be inserted."""
    after: Any = pair.after
    row = _row_of(rows, pair)
    limits = models.RuleLimit.objects.using(primary()).filter(rule=row).order_by("pk")
    keys = list(limits.values_list("pk", flat=True)) if row else []
    row = row or models.Rule()
    _assign(row, {name: value for name, value in after.items() if name != "limits"})
    return _new_limits(row, keys, pair.before["limits"] if pair.before else [], after["limits"], tiers)


def _row_of(rows: Mapping[str, Any], pair: Pair) -> Any:
    """Return the existing row, perhaps under another slug; one that cannot be enforced has no `before`."""
    return rows.get(pair.before["slug"] if pair.before else pair.after["slug"])  # type: ignore[index]


def _assign(row: Any, data: Data) -> None:
    for name, value in data.items():
        setattr(row, name, value)
    row.save(using=primary())


def _new_limits(
    rule: Any, keys: list[Any], before: Sequence[Data], after: Sequence[Data], tiers: Mapping[str, Any]
) -> list[Any]:
    """Delete the limits that differ, and return those to insert: two may have swapped their windows, which are unique.

    Their order is that of their primary keys, and callers can see it. keys: of the stored limits, in order.
    """
    if before == after:
        return []
    if len(keys) != len(before):  # the rule could not be enforced, so its limits were not compared
        before = [{}] * len(keys)
    places = _places(before, after)
    equal = {
        keys[place] for place, data in zip(places, after, strict=True) if place is not None and before[place] == data
    }
    if len(equal) < len(keys):
        models.RuleLimit.objects.using(primary()).filter(rule=rule).exclude(pk__in=equal).delete()
    both = [(None if place is None else keys[place], data) for place, data in zip(places, after, strict=True)]
    return [_limit(key, rule, tiers, data) for key, data in both if key not in equal]


def _limit(key: Any, rule: Any, tiers: Mapping[str, Any], data: Data) -> Any:
    values = {name: data[name] for name in limit_columns()}
    window = values.pop("window_seconds")
    tier = None if data["tier"] is None else tiers[data["tier"]]
    return models.RuleLimit(pk=key, rule=rule, tier=tier, window_seconds=window and Decimal(window), **values)


def _insert(limits: Sequence[Any]) -> None:
    """Insert limits in their order, with few statements where the database returns their primary keys."""
    if connections[primary()].features.can_return_rows_from_bulk_insert:
        with signals_of_save(limits, created=True):
            models.RuleLimit.objects.using(primary()).bulk_create(limits, batch_size=1_000)
        return
    for limit in limits:
        limit.save(using=primary(), force_insert=True)


@contextmanager
def signals_of_save(rows: Sequence[Any], *, created: bool, columns: frozenset[str] | None = None) -> Iterator[None]:
    """Send the signals of `save` for each row, before and after a block that saves all of them at once."""
    named: Any = {"raw": False, "using": primary(), "update_fields": columns}
    for row in rows:
        pre_save.send(type(row), instance=row, **named)
    yield
    for row in rows:
        post_save.send(type(row), instance=row, created=created, **named)


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
