"""The outcome of a request in a replay."""

from __future__ import annotations

from typing import NamedTuple

from ...decision import Decision


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


def outcome_of(decision: Decision) -> ReplayOutcome:
    """Return the outcome of a decision."""
    rules: dict[str, RuleOutcome] = {}
    for rule, tier, _, verdict, mode, _ in decision.results:
        rejected = verdict is not None and not verdict.allowed
        known = rules.get(rule.slug)
        rules[rule.slug] = RuleOutcome(
            rule.slug, tier.slug if tier else "", mode != "enforce", rejected or (known is not None and known.rejected)
        )
    return ReplayOutcome(not decision.allowed, tuple(rules.values()), by_access=decision.access is not None)
