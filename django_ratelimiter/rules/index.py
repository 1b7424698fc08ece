"""An index of the rules, which finds those that match a request without testing each rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .records import Facts, RuleRecord

#: Maximum number of kinds of requests whose rules are cached, and of different sets of rules; then the caches are
#: cleared.
MAX_REMEMBERED: Final = 2_000


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
