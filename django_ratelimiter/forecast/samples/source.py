"""Recorded samples as the traffic of a rule: requests of one caller in sixteen, counted per minute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...engine.limits import Limit
from ...models import Rule, TierAssignment
from ...rules.formatting import units
from ...rules.records import RuleRecord, TierRecord
from ...rules.routes import views_of
from ...rules.tiers import Entitlement
from ...usage.collector.partitions import GRACE_MINUTES
from ...usage.reports.coverage import Coverage, Period, read_coverage
from ...usage.reports.report import Report
from ...usage.reports.totals import Figures, freshness
from ...usage.times import now
from ..answer import RuleForecast
from ..code import costs_of_scope
from ..estimates import SAMPLED_ONE_IN
from ..evaluate import Kind, Requests, evaluators, needed_quota
from ..ledger import Blind, blind_by_nature, listed_tiers
from ..tally import Tally
from . import reading
from .reading import Source

MINUTE_US: Final = 60_000_000

#: A sample that represents less than this share of the recorded requests does not show enough.
COMPLETE_ENOUGH: Final = 0.8

#: Fewer sampled callers than this are called few.
FEW: Final = 300

#: Samples of a minute are collected this long after its counts, or a little later.
AWAITED: Final = timedelta(minutes=GRACE_MINUTES + 3)

#: The fields that determine which requests a rule matched, and what distinguished callers.
_RECORDED_BY: Final = ("methods", "path", "path_kind", "view_name", "scope", "partition_by", "missing_partition")

#: Those that must be equal if another rule has recorded the requests of a new one.
_ALIKE: Final = ("methods", "scope", "partition_by", "missing_partition")


class Samples:
    """The samples of one rule and period. They are read at their first use.

    before: the saved rule, which took the samples; `None` = those of another rule with the slug of `after` are used.
    """

    def __init__(
        self, before: RuleRecord | None, after: RuleRecord, period: Period, coverage: Coverage | None = None
    ) -> None:
        self.before, self.after, self.period = before, after, period
        self._coverage = coverage or read_coverage()
        counted_as = before or after
        self.source = Source(counted_as.slug, period, counted_as.is_shared)

    @cached_property
    def recorded(self) -> dict[str, Figures]:
        """The requests that the rule matched, by tier, with their outcomes."""
        found = Report(self.period, self.source.rule, coverage=self._coverage).totals
        by_tier = {each.tier_slug: each.figures for each in found if each.figures.requests}
        if self.source.is_shared:  # one counter, whatever the tier
            return {"": sum(by_tier.values(), Figures())} if by_tier else {}
        return by_tier

    def forecast(self, *, is_change: bool = True) -> RuleForecast:
        """Return what the changed rule would have done: requests came evenly in each minute, or all at its start."""
        tally = Tally(evaluators(self.before, self.after), scenarios=2)
        for who, spread, at_once in self._callers():
            tally.add(who, [spread, at_once])
        figures = self.recorded.values()
        return RuleForecast(
            self.after.slug,
            self.before,
            self.after,
            tally,
            {tier: each.requests for tier, each in self.recorded.items()},
            [*self._blind(tally)],
            1 if self.source.is_shared else SAMPLED_ONE_IN,
            [*self._notes(tally)],
            sum(each.rejected + each.shadow_rejected for each in figures),
            is_change=is_change,
        )

    def needed_quotas(self, tier: str | None, limit: Limit) -> list[int]:
        """Return the quotas that the sampled callers of a limit would have needed, sorted.

        tier: `None` = the limit is for every tier without limits of its own.
        """
        own = {each for each in self.after.limits if each is not None}
        found = [
            needed_quota(limit, spread.kinds[0].cost or self.after.cost, spread)
            for _who, spread, _at_once in self._callers()
            if (spread.kinds[0].tier not in own if tier is None else spread.kinds[0].tier == tier)
        ]
        return sorted(found)

    def _callers(self) -> Iterator[tuple[str, Requests, Requests]]:
        """Yield the callers, with their requests spread over each minute, and all at its start."""
        cost = next(iter(self._costs[0]), None)
        kinds: dict[str, tuple[Kind]] = {}
        for tier, who, starts in reading.callers(self.source):
            if tier not in kinds:
                entitled = Entitlement(TierRecord(tier, tier, 0, "none") if tier else None)
                kinds[tier] = (Kind((entitled, entitled), cost),)
            pairs = [pair for start, count in starts for pair in _spread(start, count)]
            spread, at_once = (
                Requests([at for at, _count in each], kinds[tier], [count for _at, count in each])
                for each in (pairs, starts)
            )
            yield who, spread, at_once

    @cached_property
    def _costs(self) -> tuple[set[int | None], list[str]]:
        return costs_of_scope(self.after.scope) if self.after.scope else (set(), [])

    def _blind(self, tally: Tally) -> Iterator[Blind]:
        before, after, requests = self.before, self.after, sum(each.requests for each in self.recorded.values())
        if not tally.total.callers:
            yield Blind("unmatched", self._why_no_samples(requests))
        if before is not None and any(getattr(before, name) != getattr(after, name) for name in _RECORDED_BY):
            yield Blind("others", _("what it applies to or counts by changes, and the saved rule took the samples"))
        if unrecorded := self._unrecorded():
            yield Blind("tiers", _("nothing is recorded for tiers that are not limited now: %s") % unrecorded)
        if any(each.limit.holds_leases for several in after.limits.values() for each in several):
            yield Blind("duration", _("requests in progress at once are not recorded"))
        fixed, computed = self._costs
        if len(fixed) > 1:
            computed = [*computed, _("different costs of one scope")]
        yield from blind_by_nature(after, computed, has_outcomes=False)
        stands_for = tally.total.requests * (1 if self.source.is_shared else SAMPLED_ONE_IN)
        if tally.total.callers and stands_for < COMPLETE_ENOUGH * requests:
            percent = round(100 * stands_for / requests)
            yield Blind("incomplete", _("the sample stands for only %d %% of the requests that were counted") % percent)

    def _why_no_samples(self, requests: int) -> str:
        if not requests:
            return _("nothing is recorded in this time")
        latest = freshness().latest
        if latest is not None and latest > now() - AWAITED and latest >= self.period.start:
            text = _("the samples of the %s recorded requests come a few minutes after the counts; look again then")
        else:
            text = _("there is no sample of the %s recorded requests")
        return text % units(requests)

    def _unrecorded(self) -> str:
        """Return the tiers that the new rule limits, but that have no records because the saved rule does not."""
        if self.source.is_shared or self.after.is_off:
            return ""
        old = self.before.limits if self.before and not self.before.is_off else {}
        new = self.after.limits
        is_first = any(old.values()) and not old.get(None) and new.get(None)
        named = {tier for limits in (old, new) for tier in limits if tier}
        missing = [tier for tier in sorted(named) if new.get(tier, new.get(None)) and not old.get(tier, old.get(None))]
        found = [tier for tier in missing if tier not in self.recorded]
        return listed_tiers([None, *found] if is_first else found)

    def _notes(self, tally: Tally) -> Iterator[str]:
        if self.source.is_shared:
            yield _(
                "All callers share one counter: the requests of each minute are known exactly, the callers are not."
            )
        elif 0 < tally.total.callers < FEW:
            text = ngettext(
                "The sample holds %(count)s caller only: the ranges are wide.",
                "The sample holds %(count)s callers only: the ranges are wide.",
                tally.total.callers,
            )
            yield text % {"count": units(tally.total.callers)}
        if tally.total.callers:
            yield _(
                "Requests are recorded per minute: the estimate assumes an even pace, and the range includes that all "
                "come at once."
            )
        if not self.source.is_shared and TierAssignment.objects.exclude(multiplier=1).exists():
            yield _(
                "Some callers have a multiplier. It is not recorded, so the limits of their tier are used without it."
            )


def _spread(start: int, count: int) -> Sequence[tuple[int, int]]:
    """Return times within a minute, at most one a second, each with its share of so many requests."""
    parts = min(count, 60)
    return [
        (start + MINUTE_US * part // parts, count * (part + 1) // parts - count * part // parts)
        for part in range(parts)
    ]


def recorded_by(new: Rule, rules: Iterable[Rule]) -> Rule | None:
    """Return the first of these rules that matches the requests of the new one and counts by the same, else `None`.

    Either for every path, or for the same views. Samples of other rules include other requests as well.
    """
    return next((rule for rule in rules if _is_alike(new, rule)), None)


def _is_alike(new: Rule, rule: Rule) -> bool:
    if any(getattr(new, name) != getattr(rule, name) for name in _ALIKE):
        return False
    if all(getattr(new, name) == getattr(rule, name) for name in ("path_kind", "path", "view_name")):
        return True
    if "exact" in (new.path_kind, rule.path_kind) or "prefix" in (new.path_kind, rule.path_kind):
        return False  # only some of a view's paths
    found = views_of(new)
    return bool(found) and set(found) == set(views_of(rule))
