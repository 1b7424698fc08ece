"""Normalizing snapshots, to compare those of different releases, and finding the same rule in two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import NOT_PROVIDED

from ..compiler import columns_of, limit_columns
from ..tables import models

Data = Mapping[str, Any]
Snapshot = Mapping[str, Any]


def meaning_of(limit: Data) -> tuple[Any, ...]:
    """Return the values that distinguish the counters of a rule's limits, as in the names of counters."""
    from ....models.limits import MEANING, MEANT

    return tuple(
        MEANT.get(column) if limit[column] is None and not limit["unlimited"] else limit[column] for column in MEANING
    )


def normal_rule(data: Data) -> dict[str, Any]:
    """Return a rule of a snapshot with all its columns. Those that an older release lacked get their meaning then.

    Descriptions are missing in snapshots of older releases, and not known; they stay missing.
    """
    found = _with_defaults(data, columns_of(models.Rule))
    if "description" not in data:
        del found["description"]
    return found | {"limits": [_normal_limit(limit) for limit in data["limits"]]}


def normal_tier(data: Data) -> dict[str, Any]:
    """Return a tier of a snapshot with all its columns."""
    return _with_defaults(data, columns_of(models.Tier))


def by_slug(snapshot: Snapshot) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the tiers and the rules of a snapshot by slug, with all their columns."""
    tiers = {data["slug"]: normal_tier(data) for data in snapshot["tiers"]}
    return tiers, {data["slug"]: normal_rule(data) for data in snapshot["rules"]}


def _normal_limit(data: Data) -> dict[str, Any]:
    meta = models.RuleLimit._meta
    return {"tier": data["tier"], **_with_defaults(data, [meta.get_field(name) for name in limit_columns()])}


def _with_defaults(data: Data, fields: Iterable[Any]) -> dict[str, Any]:
    return {field.name: data[field.name] if field.name in data else _default(field) for field in fields}


def _default(field: Any) -> Any:
    return None if field.default is NOT_PROVIDED and field.null else field.get_default()


class Pair(NamedTuple):
    """The same rule or tier in two snapshots; `None` = it is missing in one."""

    before: Data | None
    after: Data | None


def pairs(before: Sequence[Data], after: Sequence[Data]) -> list[Pair]:
    """Return rules or tiers with the same slug in pairs, and of the others those with the same name: renamed ones.

    In the order of `after`, then the deleted ones.
    """
    old, new = ({data["slug"]: data for data in rows} for rows in (before, after))
    gone = _by_unique_name(data for data in before if data["slug"] not in new)
    come = _by_unique_name(data for data in after if data["slug"] not in old)
    renamed = {data["slug"]: gone[name] for name, data in come.items() if name in gone}
    found = [Pair(old.get(data["slug"]) or renamed.get(data["slug"]), data) for data in after]
    seen = {pair.before["slug"] for pair in found if pair.before}
    return found + [Pair(data, None) for data in before if data["slug"] not in seen]


def _by_unique_name(rows: Iterable[Data]) -> dict[str, Data]:
    found: dict[str, list[Data]] = {}
    for data in rows:
        found.setdefault(data["name"], []).append(data)
    return {name: several[0] for name, several in found.items() if len(several) == 1 and name}


def changed_pairs(before: Sequence[Data], after: Sequence[Data], normal: Callable[[Data], Data]) -> list[Pair]:
    """Return the pairs of rules or tiers that differ. Most are identical and need no normalizing."""
    differing = [pair for pair in pairs(before, after) if pair.before != pair.after]
    looked_into = [Pair(*(data and normal(data) for data in pair)) for pair in differing]
    return [pair for pair in looked_into if differ(pair)]


def differ(pair: Pair) -> bool:
    """Return whether two normal rows differ in a column that both have."""
    if pair.before is None or pair.after is None:
        return True
    return any(pair.before[name] != pair.after[name] for name in pair.before.keys() & pair.after.keys())
