"""Compares what the client saw with what the rules should do, and the usage report with both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..catalogue import RULES, TIERS, Limit, Rule
from .expectation import Range, Seen, expected_of_key
from .traffic import Answer


@dataclass(frozen=True)
class Row:
    """One rule and tier. tier: `None` = all tiers together, for a rule with one counter for all.

    sent: requests that the rule matched. elsewhere: rejected only by other rules. agrees: on each counter alone.
    """

    rule: Rule
    tier: str | None
    limits: tuple[Limit, ...]
    sent: int
    admitted: int
    rejected: int
    elsewhere: int
    expected: Range
    agrees: bool


@dataclass(frozen=True)
class UsageRow:
    """The expected usage report for one rule and tier, in requests. elsewhere: rejected only by other rules."""

    rule: Rule
    tier: str
    allowed: int
    rejected: int
    elsewhere: int
    shadow_rejected: int

    @property
    def total(self) -> int:
        """All requests that the rule matched."""
        return self.allowed + self.rejected + self.elsewhere + self.shadow_rejected


def traffic_rows(answers: Sequence[Answer]) -> list[Row]:
    """Return a row for each rule and tier with requests."""
    rows = []
    for rule in RULES:
        for tiers in [[tier.slug] for tier in TIERS] if rule.partition_by else [[tier.slug for tier in TIERS]]:
            met = [one for one in answers if one.caller.tier in tiers and rule in one.stream.rules_for(one.caller)]
            if met:
                rows.append(_row(rule, tiers, met))
    return rows


def _row(rule: Rule, tiers: Sequence[str], met: Sequence[Answer]) -> Row:
    limits = rule.limits_for(tiers[0])
    by_key: dict[str, list[Answer]] = defaultdict(list)
    for answer in met:
        by_key[answer.caller.partition(rule)].append(answer)
    ranges = {key: _expected(rule, limits, answers) for key, answers in by_key.items()}
    admitted = sum(one.admitted for one in met)
    rejected = sum(rule.slug in one.rejected_by for one in met)
    return Row(
        rule,
        tiers[0] if len(tiers) == 1 else None,
        limits,
        sent=len(met),
        admitted=admitted,
        rejected=rejected,
        elsewhere=len(met) - admitted - rejected,
        expected=Range(sum(each.low for each in ranges.values()), sum(each.high for each in ranges.values())),
        agrees=all(ranges[key].holds(sum(one.admitted for one in answers)) for key, answers in by_key.items()),
    )


def _expected(rule: Rule, limits: Sequence[Limit], answers: Iterable[Answer]) -> Range:
    """Return what one counter must have allowed; a shadow rule allows whatever other rules allow."""
    seen = [_seen(rule, one) for one in answers]
    if rule.mode == "shadow":
        offered = sum(one.admitted or one.rejected_here for one in seen)
        return Range(offered, offered)
    return expected_of_key(limits, rule.cost, seen)


def _seen(rule: Rule, answer: Answer) -> Seen:
    return Seen(answer.sent, answer.answered, answer.admitted, rule.slug in answer.rejected_by)


def usage_rows(answers: Sequence[Answer]) -> list[UsageRow]:
    """Return the expected usage report for these answers. Unlimited tiers are not counted: nothing is decided."""
    rows = []
    for rule in RULES:
        for tier in (tier.slug for tier in TIERS):
            limits = rule.limits_for(tier)
            met = [one for one in answers if one.caller.tier == tier and rule in one.stream.rules_for(one.caller)]
            if met and all(limit.quota for limit in limits):
                rejected = sum(rule.slug in one.rejected_by for one in met)
                would = _would_reject(rule, limits, met) if rule.mode == "shadow" else 0
                admitted = sum(one.admitted for one in met)
                rows.append(UsageRow(rule, tier, admitted - would, rejected, len(met) - admitted - rejected, would))
    return rows


def _would_reject(rule: Rule, limits: Sequence[Limit], met: Iterable[Answer]) -> int:
    """Return how many a shadow rule would have rejected; its traffic is such that the rule determines the number."""
    by_key: dict[str, list[Seen]] = defaultdict(list)
    for answer in met:
        by_key[answer.caller.partition(rule)].append(_seen(rule, answer))
    return sum(len(seen) - expected_of_key(limits, rule.cost, seen).high for seen in by_key.values())
