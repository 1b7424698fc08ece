"""What a changed rule would have rejected in a period, estimated from the recorded samples."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from operator import gt
from typing import Final, NamedTuple

from ...engine.limits import Limit
from ...rules.records import RuleRecord
from ...usage.collector.partitions import GRACE_MINUTES
from ...usage.reports.coverage import Coverage, Period, read_coverage
from ...usage.reports.report import Report
from ...usage.reports.totals import Figures, freshness
from ...usage.times import Granularity, now
from . import estimates, reading
from .cells import MAX_THRESHOLD, MICROSECONDS, CellThresholds, Width, cells_of, thresholds_by_tier
from .estimates import NOTHING, SAMPLED_ONE_IN, Range
from .reading import Source
from .tally import ByTier, SampleTally, TopCaller

#: The thresholds of a rule by tier and by the width of cells.
Limits = Mapping[str, Mapping[Width, CellThresholds]]

#: Counts at the three thresholds of cells.
Levels = tuple[int, int, int]

#: The indexes of the three thresholds.
MOST, EVEN, SAFE = 0, 1, 2

#: Further counts: callers that only the new rule rejects, and callers that only the old rule rejects.
NEWLY, NO_LONGER = 2, 3

#: Samples of a minute are collected this long after its counts, or a little later.
AWAITED: Final = timedelta(minutes=GRACE_MINUTES + 3)

#: For a rule without limits, the requests of a minute are shown.
MINUTE: Final = Width(60)


class Effect(NamedTuple):
    """What a rule rejects in a tier: how many of its callers at least once, and how many requests."""

    callers: Range
    requests: Range


class TierForecast(NamedTuple):
    """One tier. "" = no tier. requests: recorded, all of them. sampled: callers in the sample.

    before, after: by the old rule, and by the new one. newly: callers that only the new one rejects; no_longer:
    that only the old one rejects.
    """

    tier: str
    requests: int
    sampled: int
    before: Effect
    after: Effect
    newly: Range
    no_longer: Range


class HourForecast(NamedTuple):
    """Requests in one hour, and how many of them the old and the new rule reject."""

    start: datetime
    end: datetime
    requests: int
    before: Range
    after: Range


class CallerForecast(NamedTuple):
    """A sampled caller. peak: its most requests in one cell. before, after: its rejected requests.

    first_at: when the new rule rejects it first; `None` = never.
    """

    tier: str
    who: str
    requests: int
    peak: int
    before: int
    after: int
    first_at: datetime | None


#: A check differs much if the larger of its numbers is at least the first of these, and so many times the other.
MUCH, TIMES = 100, 3


class Forecast:
    """The forecast of one rule and period. Data is read at its first use; samples only once.

    before: the old rule; `None` = there is none. after: the new rule. Memory: that of `SampleTally` and of
    `reading.callers`.
    """

    def __init__(
        self,
        before: RuleRecord | None,
        after: RuleRecord,
        period: Period,
        *,
        coverage: Coverage | None = None,
    ) -> None:
        self.before, self.after, self.period = before, after, period
        self.coverage = coverage or read_coverage()
        counted_as = before or after
        self.is_shared = not counted_as.partition_by
        self.source = Source(counted_as.slug, period, self.is_shared)

    @cached_property
    def recorded(self) -> dict[str, Figures]:
        """The requests that the rule matched, by tier, with their outcomes."""
        found = Report(self.period, self.source.rule, coverage=self.coverage).totals
        by_tier = {each.tier_slug: each.figures for each in found if each.figures.requests}
        if self.is_shared:  # one counter, whatever the tier
            return {"": sum(by_tier.values(), Figures())} if by_tier else {}
        return by_tier

    @cached_property
    def tiers(self) -> list[str]:
        """The tiers with requests, or with their own limits; "" = no tier."""
        named = {tier for rule in (self.before, self.after) if rule for tier in rule.limits if tier is not None}
        return sorted({""} if self.is_shared else {"", *self.recorded, *named})

    @cached_property
    def limits(self) -> tuple[Limits, Limits]:
        """The thresholds of the old rule, and of the new one."""
        return thresholds_by_tier(self.before, self.tiers), thresholds_by_tier(self.after, self.tiers)

    @cached_property
    def widths(self) -> list[Width]:
        """The widths of all cells, those of the new rule first."""
        own = [width for limits in reversed(self.limits) for of_tier in limits.values() for width in of_tier]
        return [*dict.fromkeys(own)] or [MINUTE]

    @cached_property
    def tally(self) -> SampleTally:
        """The sums of the samples. For each width, the thresholds of the old rule come first. One query."""
        thresholds: dict[Width, list[ByTier]] = {
            width: [_thresholds(limits, width, level) for limits in self.limits for level in range(3)]
            for width in self.widths
        }
        start, end = (int(moment.timestamp()) for moment in self.period)
        found = SampleTally(self.widths, thresholds, (start, end), reading.Seconds())
        for tier, who, minutes, counts in reading.callers(self.source):
            found.add(tier, who, minutes, counts)
        return found

    @property
    def sampled(self) -> int:
        """Return the number of callers in the sample; 0 = nothing is recorded."""
        return sum(map(self.tally.sampled, self.tally.requests))

    @property
    def callers(self) -> int:
        """Return about how many callers there were; those that share one counter are one."""
        return self.sampled if self.is_shared else self.sampled * SAMPLED_ONE_IN

    @property
    def requests(self) -> int:
        """Return how many requests the rule matched."""
        return sum(figures.requests for figures in self.recorded.values())

    @cached_property
    def completeness(self) -> float | None:
        """The share of the recorded requests that the sample represents: 1 = all. `None` = there are none."""
        sampled = sum(self.tally.requests.values())
        return sampled * (1 if self.is_shared else SAMPLED_ONE_IN) / self.requests if self.requests else None

    @property
    def counted(self) -> int:
        """Return how many requests were rejected, or would have been in shadow."""
        return sum(figures.rejected + figures.shadow_rejected for figures in self.recorded.values())

    @property
    def unexplained(self) -> int:
        """Return `counted` if the old rule, applied to the sample, does not explain as many; else 0."""
        if self.before is None or self.is_shared:
            return 0
        found, (_most, even, _safe) = self.rejected_requests(0), self.rejected_callers(0)[0]
        return self.counted if not even or self.counted > found.high else 0

    @property
    def differs(self) -> bool:
        """Return whether the old rule, applied to the sample, rejects much more or much less than `counted`."""
        if self.before is None:
            return False
        found = self.rejected_requests(0)
        least, most = sorted((self.counted, found.about))
        return most >= MUCH and (most > TIMES * least or not found.low <= self.counted <= found.high)

    @property
    def awaits_samples(self) -> bool:
        """Return whether the latest counts are so new that their samples may be collected later."""
        latest = freshness().latest
        return latest is not None and latest > now() - AWAITED and latest >= self.period.start

    @property
    def unrecorded(self) -> list[str]:
        """Return the tiers that the new rule limits, but that have no records because the old rule does not limit them.

        "" = every tier without limits of its own: a rule that limits only some tiers counts no others.
        """
        before, after = self.limits
        found = [tier for tier in self.tiers if tier and after[tier] and not before[tier] and tier not in self.recorded]
        limits = self.before.limits if self.before else {}
        is_first = any(limits.values()) and not limits.get(None) and self.after.limits.get(None)
        return ["", *found] if is_first and not self.after.is_off else found

    @cached_property
    def by_tier(self) -> list[TierForecast]:
        """The tiers with requests."""
        sampled = {tier: self.tally.sampled(tier) for tier in self.tiers}
        return [self._tier(tier, count) for tier, count in sampled.items() if count or tier in self.recorded]

    def rejected_callers(self, side: int) -> tuple[Levels, Range]:
        """Return how many sampled callers the old rule (0) or the new one (1) rejects, and the share of all callers."""
        counts = self._counts(side)
        return counts, self._share(counts, self.sampled)

    def rejected_requests(self, side: int) -> Range:
        """Return how many requests the old rule (0) or the new one (1) rejects."""
        effects = [(tier.before, tier.after)[side] for tier in self.by_tier]
        return Range(*(sum(each.requests[level] for each in effects) for level in range(3)))

    @property
    def share_of_callers(self) -> Range:
        """Return the callers that only the new rule rejects, as a share of all, from 0 to 1."""
        if self.limits[0] == self.limits[1]:
            return NOTHING
        return self._share(self._counts(NEWLY), self.sampled)

    @property
    def share_of_requests(self) -> Range:
        """Return the additional requests that the new rule rejects, as a share of all, from 0 to 1."""
        if not self.requests:
            return NOTHING
        more = [
            sum(max(0.0, tier.after.requests[level] - tier.before.requests[level]) for tier in self.by_tier)
            for level in range(3)
        ]
        return Range(min(more), more[EVEN], max(more)).times(1 / self.requests)

    @cached_property
    def by_hour(self) -> list[HourForecast]:
        """The hours of the period. Requests above a threshold are counted in their own hour."""
        points = Report(self.period, self.source.rule, coverage=self.coverage).series(Granularity.HOUR)
        starts = [point.start for point in points]
        by_width = [self._hours_of(self.tally.beyond(width), starts) for width in self.widths]
        found = []
        for place, point in enumerate(points):
            requests = point.figures.requests
            before, after = (
                estimates.of_several([hours[place, side] for hours in by_width], requests) for side in (0, 1)
            )
            found.append(HourForecast(point.start, point.end, requests, before, after))
        return found

    def _hours_of(
        self, rows: Mapping[tuple[str, int], Sequence[int]], starts: list[datetime]
    ) -> dict[tuple[int, int], Range]:
        """Return what cells of one width reject, by the index of the hour and the side."""
        found: dict[tuple[int, int], Range] = defaultdict(lambda: NOTHING)
        for (tier, at), counts in rows.items():
            place = max(0, bisect_right(starts, _moment(at)) - 1)
            for side in (0, 1):
                more = estimates.exact(_levels(counts, side)).times(self._scale(tier))
                found[place, side] = found[place, side].plus(more)
        return found

    @cached_property
    def top(self) -> list[CallerForecast]:
        """The sampled callers with the most requests in one cell of the first width."""
        return [] if self.is_shared else [self._caller(each) for each in self.tally.top]

    def _caller(self, each: TopCaller) -> CallerForecast:
        rejected, firsts = [0, 0], list[int]()
        for side, limits in enumerate(self.limits):
            for width, cells in each.cells.items():
                thresholds = limits.get(each.tier, {}).get(width)
                if thresholds is not None:
                    over = {at: count - thresholds.even for at, count in cells.items() if count > thresholds.even}
                    rejected[side] = max(rejected[side], sum(over.values()))
                    firsts += [each.first_beyond(min(over), thresholds.even)] if side and over else []
        before, after = rejected
        first_at = _moment(min(firsts)) if firsts else None
        return CallerForecast(each.tier, each.who, each.requests, -each.negative_peak, before, after, first_at)

    def rates(self, tier: str | None, limit: Limit) -> list[int]:
        """Return the rates of a limit's sampled callers, sorted: the quota that each would have needed.

        In units per window, at an even pace. The capacity of a bucket is subtracted first. tier: `None` = the limit is
        for every tier without limits of its own.
        """
        found = cells_of(limit)
        if found is None or found[0] not in self.tally.widths:
            return []
        own = {each for each in self.after.limits if each is not None}
        tiers = [each for each in self.tally.requests if (each not in own if tier is None else each == tier)]
        width = found[0]
        peaks = [peak for each in tiers for peak in self.tally.peaks_of(each, width)]
        return sorted(_needed(peak * self.after.cost, limit, width) for peak in peaks)

    @cached_property
    def _exceeding(self) -> dict[str, list[list[int]]]:
        """By tier and level: how many sampled callers exceed the old rule, the new one, only the new, only the old."""
        return {tier: [self._exceeding_level(tier, level) for level in range(3)] for tier in self.tally.requests}

    def _exceeding_level(self, tier: str, level: int) -> list[int]:
        lowest = [
            [limits[tier][width][level] if width in limits.get(tier, {}) else MAX_THRESHOLD for width in self.widths]
            for limits in self.limits
        ]
        counts = Counter[tuple[bool, ...]]()
        for peaks, callers in self._peaks[tier].items():
            counts[tuple(any(map(gt, peaks, each)) for each in lowest)] += callers
        both, first, second = counts[True, True], counts[True, False], counts[False, True]
        return [both + first, both + second, second, first]

    @cached_property
    def _peaks(self) -> dict[str, Counter[tuple[int, ...]]]:
        """By tier: how many sampled callers have these peaks, one for each width."""
        return {tier: Counter(zip(*peaks, strict=True)) for tier, peaks in self.tally.peaks.items()}

    def _tier(self, tier: str, sampled: int) -> TierForecast:
        figures = self.recorded.get(tier, Figures())
        newly, no_longer = (self._share(self._counts(what, tier), sampled) for what in (NEWLY, NO_LONGER))
        if self.limits[0][tier] == self.limits[1][tier]:
            newly = no_longer = NOTHING
        callers = sampled if self.is_shared else sampled * SAMPLED_ONE_IN
        before, after = (self._effect(tier, side, sampled, figures.requests) for side in (0, 1))
        return TierForecast(
            tier, figures.requests, sampled, before, after, newly.times(callers), no_longer.times(callers)
        )

    def _effect(self, tier: str, side: int, sampled: int, total: int) -> Effect:
        most, even, safe = self._counts(side, tier)
        sums = []
        for width in self.widths:
            rows = [_levels(row, side) for (of, _at), row in self.tally.beyond(width).items() if of == tier]
            sums.append([sum(row[level] for row in rows) for level in range(3)])
        requests = max(each[MOST] for each in sums), max(each[EVEN] for each in sums), sum(each[SAFE] for each in sums)
        share = self._share((most, even, safe), sampled)
        if self.is_shared:
            return Effect(share, estimates.exact(requests))
        found = estimates.requests(requests, (most, even, safe), self._scale(tier), total)
        if not safe:  # callers outside the sample may exceed it with all of their requests
            found = found._replace(high=min(share.high * total, total))
        return Effect(share.times(sampled * SAMPLED_ONE_IN), found)

    def _counts(self, what: int, tier: str | None = None) -> Levels:
        """Return how many sampled callers exceed each level. what: a side, NEWLY or NO_LONGER."""
        found = [each for of, each in self._exceeding.items() if tier in (None, of)]
        most, even, safe = (sum(each[level][what] for each in found) for level in range(3))
        return most, even, safe

    def _share(self, counts: Levels, sampled: int) -> Range:
        return estimates.exact(counts) if self.is_shared else estimates.share_of_callers(counts, sampled)

    def _scale(self, tier: str) -> float:
        """Return the requests of all callers of a tier for each one of a sampled caller."""
        if self.is_shared:
            return 1.0
        sampled, recorded = self.tally.requests[tier], self.recorded.get(tier)
        return recorded.requests / sampled if recorded and sampled else float(SAMPLED_ONE_IN)


def _needed(units: int, limit: Limit, width: Width) -> int:
    """Return the quota that is exceeded by this many units in a cell exactly if its even threshold is."""
    if limit.burst is not None and units <= limit.burst:
        return 0
    if width.calendar:
        return units
    needed = -(-units * limit.window_us // (width.seconds * MICROSECONDS))
    return min(units, needed) if limit.burst is None else needed


def _thresholds(limits: Limits, width: Width, level: int) -> dict[str, int]:
    """Return a threshold by tier, for tiers that have one of this width."""
    return {tier: of_tier[width][level] for tier, of_tier in limits.items() if width in of_tier}


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _levels(counts: Sequence[int], side: int) -> Levels:
    most, even, safe = counts[3 * side : 3 * side + 3]
    return most, even, safe
