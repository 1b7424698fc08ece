"""What a source of traffic does not show of a rule, found before there is a verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from django.utils.translation import gettext as _

from ..conf import settings
from ..models import TierAssignment
from ..rules.records import LimitRecord, RuleRecord

#: Why something is not seen. "unmatched": no request. "tiers": none of these tiers. "value": what callers are told
#: apart by. "unreadable": lines. "outcome": failures. "cost", "scope": what code asks for. "duration", "resolution":
#: of times. "own_day": months of a caller. "others": the samples are of other requests. "incomplete": some are missing.
BlindKind = Literal[
    "unmatched", "tiers", "value", "unreadable", "outcome", "cost", "scope", "duration", "resolution", "own_day",
    "others", "incomplete",
]  # fmt: skip

#: Kinds with which what is seen is wrong, and not a part.
MISLEADING: Final = ("outcome", "cost", "duration", "resolution", "own_day")

#: If at least this share of a file's lines lacks what a rule needs, the others say nothing of it.
MOST: Final = 0.5

#: Shorter windows need times with fractions: within a second, the order of requests is not known.
SHORT_US: Final = 30_000_000


class Blind(NamedTuple):
    """What is not seen of one rule. text: why, as a part of a sentence.

    lines: how many requests are not seen. They count as newly rejected, each of a caller of its own. 0 = it is not
    known how many, so the rule is not known.
    """

    kind: BlindKind
    text: str
    lines: int = 0

    @property
    def is_countable(self) -> bool:
        """True if the number of requests that are not seen is known."""
        return self.lines > 0


def blind_by_nature(rule: RuleRecord, costs: Iterable[str], *, has_outcomes: bool) -> Iterator[Blind]:
    """Yield what no source shows of a rule.

    costs: where code computes what a request costs. has_outcomes: the source shows responses of the rule that are
    failures, but not which of the others are.
    """
    if rule.charge_when != "any":
        text = _("the status of a response does not show all failures, such as those of a login form")
        yield Blind("outcome", text if has_outcomes else _("whether requests succeed is not recorded"))
    if costs := [*costs]:
        yield Blind("cost", _("code computes the cost of its requests: %s") % ", ".join(costs))
    has_anchors = TierAssignment.objects.exclude(anchor_day=None).exists
    if rule.has_months and (settings.TIER_RESOLVER or has_anchors()):
        yield Blind("own_day", _("the months of some callers begin on a day of their own"))


def unseen_tiers(before: RuleRecord | None, after: RuleRecord, seen: Collection[str]) -> Iterator[Blind]:
    """Yield the tiers whose limits are new or change, if no request is of their callers. seen: the slugs of others."""
    if before is not None and replace(before, slug=after.slug, name=after.name, limits=after.limits) != after:
        before = None
    known = {**(before.limits if before else {}), **after.limits}

    def limits(rule: RuleRecord | None, tier: str | None) -> tuple[LimitRecord, ...]:
        return rule.limits.get(tier, rule.limits.get(None, ())) if rule else ()

    met = {tier if tier in known else None for tier in seen}
    missed = [
        each or _("every other tier")
        for each in known
        if each not in met and limits(after, each) not in ((), limits(before, each))
    ]
    if missed:
        yield Blind("tiers", _("no request is of a caller of these tiers: %s") % ", ".join(missed))
