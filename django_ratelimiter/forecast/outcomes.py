"""The outcome of a request in a replay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..rules.records import RuleRecord, TierRecord


class RuleOutcome(NamedTuple):
    """The outcome of one rule. rejected: by itself, whatever other rules decided; in shadow it would have been."""

    rule: str
    tier: str
    shadow: bool
    rejected: bool


class ReplayOutcome:
    """The outcomes of all rules for a request; requests with equal outcomes share one object.

    rejected: the response is 429, or 403 by an access entry. rules: all that were decided, each once.
    """

    __slots__ = ("by_access", "rejected", "rules", "would_reject")

    def __init__(self, rejected: bool, rules: tuple[RuleOutcome, ...] = (), *, by_access: bool = False) -> None:
        self.rejected, self.rules, self.by_access = rejected, rules, by_access
        self.would_reject = any(each.shadow and each.rejected for each in rules)


#: No rule was decided.
NO_RULES: Final = ReplayOutcome(False)

#: An access entry denies the caller.
DENIED: Final = ReplayOutcome(True, by_access=True)


def outcome_of(asked: Iterable[tuple[tuple[RuleRecord, TierRecord | None], bool]]) -> ReplayOutcome:
    """Return the outcome of charges. asked: rule and tier of each, and whether it was rejected."""
    rules: dict[str, RuleOutcome] = {}
    rejected = False
    for (rule, tier), fails in asked:
        known = rules.get(rule.slug)
        fails_already = known is not None and known.rejected
        shadow = rule.mode != "enforce"
        rules[rule.slug] = RuleOutcome(rule.slug, tier.slug if tier else "", shadow, fails or fails_already)
        rejected = rejected or (fails and not shadow)
    return ReplayOutcome(rejected, tuple(rules.values()))
