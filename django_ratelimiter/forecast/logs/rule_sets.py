"""The rule sets to replay: the current one, an earlier version, or a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from django.utils.translation import gettext as _

from ...engine.base import Version
from ...rules import cache
from ...rules.files.reading import LibraryMissing, WrongFile, load
from ...rules.ruleset import RuleRecord, RuleSet
from ...rules.stored import storage


class UnknownRules(ValueError):
    """There is no such rule set; the message lists the existing ones."""


def in_force() -> RuleSet:
    """Return the current rules."""
    return cache.current_rules()


def of_version(number: int) -> RuleSet:
    """Return a stored version. Raises UnknownRules."""
    found = storage.snapshots().filter(number=number).values_list("snapshot", "number", "epoch").first()
    if found is None:
        latest = storage.snapshots().values_list("number", flat=True).first()
        told = _("There is no version %(number)s; the latest is %(latest)s.")
        raise UnknownRules(told % {"number": number, "latest": latest or 0})
    return RuleSet.from_snapshot(found[0], Version(*found[1:]))


def with_shadow_enforced(rules: RuleSet) -> RuleSet:
    """Return the rules as they would be if those in shadow were enforced."""
    return changed(rules, [replace(rule, mode="enforce") if rule.mode == "shadow" else rule for rule in rules.rules])


def changed(rules: RuleSet, records: Iterable[RuleRecord]) -> RuleSet:
    """Return this rule set with other rules."""
    return RuleSet(rules.version, rules.tiers.values(), records, rules.left_out, is_versioned=False)


def of_file(path: str) -> RuleSet:
    """Return the rules of a file. Raises UnknownRules, with every error of the file, and OSError."""
    try:
        return load(path).rule_set()
    except (WrongFile, LibraryMissing) as error:
        raise UnknownRules(str(error)) from error
