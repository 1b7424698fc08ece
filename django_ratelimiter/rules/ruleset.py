"""The rule set: records built from one snapshot, and an index of the rules that match a request. No ORM, no HTTP."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any, Final

from ..engine.base import Version
from ..engine.limits import Limit, check_sync_interval, options_from, sync_seconds
from ..values.partitions import IDENTITIES, NAMED, is_identity
from .records import (
    CHARGE_WHEN,
    FAILURE_POLICIES,
    MISSING_PARTITION,
    MODES,
    PATH_KINDS,
    Facts,
    LimitRecord,
    RejectedRule,
    RuleRecord,
    TierRecord,
)

__all__ = ["Facts", "RuleSet"]

Snapshot = Mapping[str, Any]

#: The content of a database before its first version.
NO_VERSION: Final = Version(0)

#: Maximum number of kinds of requests whose rules are cached, and of different sets of rules; then the caches are
#: cleared.
MAX_REMEMBERED: Final = 2_000

#: The values of a rule that have a choice of words.
_CHOICES: Final[Mapping[str, Collection[str]]] = {
    "mode": MODES,
    "path_kind": PATH_KINDS,
    "missing_partition": MISSING_PARTITION,
    "failure_policy": FAILURE_POLICIES,
    "charge_when": CHARGE_WHEN,
}


class RuleSet:
    """All rules of one version.

    enforced: False = an operator has stopped all enforcement; then no rule and no access entry applies.
    compared_as: the version that calls of the engine send, to compare it with the current one; `None` = no comparison,
    because these rules are not committed, or there are no tables. kept: what the limiter caches for these rules. It is
    freed with them. is_copy: they are the copy in Redis, so the database cannot be read, and assignments neither.
    """

    def __init__(
        self,
        version: Version,
        tiers: Iterable[TierRecord] = (),
        rules: Iterable[RuleRecord] = (),
        left_out: Iterable[RejectedRule] = (),
        *,
        enforced: bool = True,
        is_versioned: bool = True,
    ) -> None:
        self.version = version
        self.compared_as: Version | None = version if is_versioned else None
        self.enforced = enforced
        self.is_copy: bool = False
        self.tiers: dict[str, TierRecord] = {tier.slug: tier for tier in tiers}
        self.rules: tuple[RuleRecord, ...] = tuple(sorted(rules, key=lambda rule: (rule.priority, rule.slug)))
        self.left_out: tuple[RejectedRule, ...] = tuple(left_out)
        self.kept: dict[Any, Any] = {}
        #: The tiers of `anonymous` and `authenticated` requests without an assignment.
        self.default_tiers: dict[str, TierRecord] = {tier.default_for: tier for tier in self.tiers.values()}
        #: Returns the rules that match a request, in ascending priority, then slug.
        self.match: Callable[[Facts], tuple[RuleRecord, ...]] = RuleIndex(self.rules).match

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, version: Version = NO_VERSION) -> RuleSet:
        """Build it from the compiler's snapshot. A rule that cannot be enforced is left out with the reason."""
        tiers = [
            TierRecord(tier["slug"], tier["name"], tier["rank"], tier["default_for"]) for tier in snapshot["tiers"]
        ]
        left_out = [RejectedRule(entry["rule"], entry["reason"]) for entry in snapshot["left_out"]]
        rules = []
        for data in snapshot["rules"]:
            try:
                rules.append(rule_from(data))
            except (ValueError, KeyError, TypeError) as error:
                left_out.append(RejectedRule(str(data.get("slug")), str(error)))
        enforced = snapshot.get("enforcement", True) is not False  # older versions lack it
        return cls(version, tiers, rules, left_out, enforced=enforced)


def rule_from(data: Mapping[str, Any]) -> RuleRecord:
    """Return one rule of a snapshot. Raises ValueError with the reason if it cannot be enforced."""
    data = {"charge_when": CHARGE_WHEN[0], **data}  # older versions lack it
    for name, choices in _CHOICES.items():
        if data[name] not in choices:
            raise ValueError(f"{name}: {data[name]!r} is unknown; choose one of {', '.join(choices)}.")
    methods, partition_by = _texts(data, "methods"), _texts(data, "partition_by")
    for name in partition_by:
        if not is_identity(name):
            raise ValueError(f"partition_by: {name!r} is unknown; choose from {', '.join((*IDENTITIES, *NAMED))}.")
    cost = data["cost"]
    if type(cost) is not int or cost < 1:
        raise ValueError(f"cost: must be a whole number from 1, not {cost!r}.")
    count_refusals = data.get("count_refusals", False)  # older versions lack it
    if not isinstance(count_refusals, bool):
        raise ValueError(f"count_refusals: must be true or false, not {count_refusals!r}.")
    limits: dict[str | None, tuple[LimitRecord, ...]] = {}
    unlimited = {entry["tier"] for entry in data["limits"] if entry["unlimited"]}
    for entry in data["limits"]:
        tier = entry["tier"]
        limits[tier] = () if tier in unlimited else (*limits.get(tier, ()), limit_from(entry))
    sync_interval = sync_seconds(data.get("sync_interval_ms"))  # older versions lack it
    for record in [record for several in limits.values() for record in several]:
        check_sync_interval(record.limit, sync_interval)
    tags = [(tier, record.limit.tag) for tier, several in limits.items() for record in several]
    if len(set(tags)) != len(tags):
        raise ValueError("limits: a tier has two limits that would share one counter; keep the lower one.")
    as_stored: dict[str, Any] = {each.name: data[each.name] for each in fields(RuleRecord) if each.name in data}
    return RuleRecord(
        **as_stored
        | {
            "methods": frozenset(methods) | ({"HEAD"} if "GET" in methods else set()),  # the same view answers both
            "partition_by": tuple(partition_by),
            "count_refusals": count_refusals,
            "limits": limits,
            "sync_interval": sync_interval,
        }
    )


def limit_from(entry: Mapping[str, Any]) -> LimitRecord:
    """Return one limit of a snapshot, also of an older version. Raises ValueError if it cannot be enforced."""
    limit = Limit(entry["quota"], _window(entry), entry["algorithm"], **options_from(entry.get))
    return LimitRecord(limit, _count(entry, "max_delay_ms") / 1000, _count(entry, "generation"))


def _window(entry: Mapping[str, Any]) -> Any:
    """Return the window of a limit in seconds; `None` = a unit of the calendar."""
    text = entry["window_seconds"]
    if text is None and entry.get("calendar"):
        return None
    try:
        window = Decimal(text)
        whole = int(window)
    except (ArithmeticError, TypeError, ValueError):
        raise ValueError(f"window: must be a number of seconds, not {text!r}.") from None
    return whole if whole == window else window


def _count(entry: Mapping[str, Any], name: str) -> int:
    count = entry.get(name, 0)
    if type(count) is not int or count < 0:
        raise ValueError(f"{name}: must be a whole number from 0, not {count!r}.")
    return count


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    texts = data[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name}: must be a list of texts, not {texts!r}.")
    return texts


class RuleIndex:
    """Rules by the condition that fewest requests match, so that a lookup does not grow with the number of other rules.

    Requests of one kind match the same rules, and callers can make up any number of kinds. So kinds that match equal
    rules share one tuple, whose `id` is the key of later caches.

    rules: in the order of decisions; those that are off are left out.
    """

    def __init__(self, rules: Sequence[RuleRecord]) -> None:
        rules = [rule for rule in rules if not rule.is_off]
        self._order = {rule.slug: position for position, rule in enumerate(rules)}
        self._rules: dict[tuple[str, str], list[RuleRecord]] = {}
        for rule in rules:
            self._rules.setdefault(_key_of(rule), []).append(rule)
        self._prefix_lengths = sorted({len(value) for kind, value in self._rules if kind == "prefix"})
        self._paths = frozenset(rule.path for rule in rules if rule.path_kind == "exact")
        self._methods = frozenset[str]().union(*(rule.methods for rule in rules))
        self._longest_prefix = max((len(rule.path) for rule in rules if rule.path_kind == "prefix"), default=0)
        self._remembered: dict[tuple[str | bool, ...], tuple[RuleRecord, ...]] = {}
        self._shared: dict[tuple[str, ...], tuple[RuleRecord, ...]] = {}  # by the slugs of the rules

    def match(self, facts: Facts) -> tuple[RuleRecord, ...]:
        """Return the rules that match a request with these facts, in their order."""
        method, path, route, view_name, scope = facts
        whole = path in self._paths
        named = method if method in self._methods else ""  # callers can make up others
        kind = named, whole, path if whole else path[: self._longest_prefix], route, view_name, scope
        met = self._remembered.get(kind)
        if met is None:
            met = self._look_up(facts)
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[kind] = met
        return met

    def _look_up(self, facts: Facts) -> tuple[RuleRecord, ...]:
        rules, path = self._rules, facts.path
        keys = [("any", ""), ("exact", path), ("route", facts.route), ("view", facts.view_name), ("scope", facts.scope)]
        for length in self._prefix_lengths:
            if length > len(path):
                break
            keys.append(("prefix", path[:length]))
        found = [rule for key in keys if key in rules for rule in rules[key] if not rule.mismatch(facts)]
        return self._share(tuple(sorted(found, key=lambda rule: self._order[rule.slug])))

    def _share(self, met: tuple[RuleRecord, ...]) -> tuple[RuleRecord, ...]:
        """Return the shared tuple of these rules."""
        if len(self._shared) >= MAX_REMEMBERED:
            self._shared.clear()
        return self._shared.setdefault(tuple([rule.slug for rule in met]), met)


def _key_of(rule: RuleRecord) -> tuple[str, str]:
    """Return the condition by which a rule is indexed: the one that fewest requests match."""
    if rule.path_kind in ("exact", "route"):
        return rule.path_kind, rule.path
    if rule.view_name:
        return "view", rule.view_name
    if rule.scope:
        return "scope", rule.scope
    return ("prefix", rule.path) if rule.path_kind == "prefix" else ("any", "")
