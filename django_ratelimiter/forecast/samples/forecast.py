"""What a rule would have rejected in a period if it had been another one, estimated from the recorded samples."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Final

from ...rules.records import RuleRecord
from ...usage.reports import totals
from ...usage.reports.coverage import Coverage, Period, read_coverage
from ...usage.reports.totals import Figures
from ...usage.times import Granularity
from . import estimates, reading
from .cells import CellThresholds, Width, thresholds_by_tier
from .estimates import NOTHING, SAMPLED_ONE_IN, Range
from .reading import Beyond, Source
from .results import CallerForecast, Effect, HourForecast, TierForecast

#: So many callers are named, those with the most requests in a cell.
MAX_CALLERS: Final = 25

#: The thresholds of a rule by tier and by the width of cells.
Limits = Mapping[str, Mapping[Width, CellThresholds]]

#: A tier and the digest of a caller in it.
Key = tuple[str, str]

#: Counts at the three thresholds of cells.
Levels = tuple[int, int, int]

#: The thresholds of cells, as places in them.
MOST, EVEN, SAFE = 0, 1, 2

#: Of a rule without any limit, the requests of a minute are shown.
MINUTE: Final = Width(60)


class Forecast:
    """The forecast of one rule and period. What it reads, it reads when it is first asked for.

    before: the rule as it is; `None` = there is none. after: as it would be. widths: further widths of cells to know
    the callers' peaks in. without: a part of the period whose samples are not to be read.
    """

    def __init__(
        self,
        before: RuleRecord | None,
        after: RuleRecord,
        period: Period,
        *,
        widths: Iterable[Width] = (),
        without: Period | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        self.before, self.after, self.period = before, after, period
        self.coverage = coverage or read_coverage()
        counted_as = before or after
        self.is_shared = not counted_as.partition_by
        self.source = Source(counted_as.slug, period, self.is_shared, without)
        self._further = tuple(widths)

    @cached_property
    def recorded(self) -> dict[str, Figures]:
        """The requests that the rule matched, by tier, and what became of them."""
        found = totals.totals(self.period, self.source.rule, coverage=self.coverage)
        by_tier = {each.tier_slug: each.figures for each in found if each.figures.requests}
        if self.is_shared:  # one counter, whatever tier
            return {"": sum(by_tier.values(), Figures())} if by_tier else {}
        return by_tier

    @cached_property
    def tiers(self) -> list[str]:
        """The tiers that were met, or that have limits of their own; "" = no tier."""
        named = {tier for rule in (self.before, self.after) if rule for tier in rule.limits if tier is not None}
        return sorted({""} if self.is_shared else {"", *self.recorded, *named})

    @cached_property
    def limits(self) -> tuple[Limits, Limits]:
        """The thresholds of the rule as it is, and as it would be."""
        return thresholds_by_tier(self.before, self.tiers), thresholds_by_tier(self.after, self.tiers)

    @cached_property
    def widths(self) -> list[Width]:
        """The widths of all cells, those of the rule as it would be first."""
        own = [width for limits in reversed(self.limits) for of_tier in limits.values() for width in of_tier]
        return [*dict.fromkeys([*own, *self._further])] or [MINUTE]

    @cached_property
    def peaks(self) -> dict[Width, dict[Key, int]]:
        """The sampled callers, each with its most requests in one cell. One query for each width."""
        found: dict[Width, dict[Key, int]] = {}
        for width in self.widths:
            peaks = found[width] = {}
            for tier, who, requests, peak in reading.callers(self.source, width):
                peaks[tier, who] = peak
                self.requests_of[tier, who] = requests
        return found

    @cached_property
    def requests_of(self) -> dict[Key, int]:
        """The requests of each sampled caller; filled together with `peaks`."""
        return {}

    @property
    def sampled(self) -> int:
        """Return how many callers the sample has; 0 = nothing is recorded."""
        return len(self.peaks[self.widths[0]])

    @property
    def callers(self) -> int:
        """Return about how many callers there were; those who share one counter are one."""
        return self.sampled if self.is_shared else self.sampled * SAMPLED_ONE_IN

    @property
    def requests(self) -> int:
        """Return how many requests the rule matched."""
        return sum(figures.requests for figures in self.recorded.values())

    @cached_property
    def completeness(self) -> float | None:
        """The share of the recorded requests that the sample stands for: 1 = all. `None` = there are none."""
        sampled = sum(self.requests_of.values()) if self.peaks else 0
        return sampled * (1 if self.is_shared else SAMPLED_ONE_IN) / self.requests if self.requests else None

    @property
    def unrecorded(self) -> list[str]:
        """Return the tiers that the rule as it would be limits, and that nothing is recorded of because it does not."""
        before, after = self.limits
        return [tier for tier in self.tiers if tier and after[tier] and not before[tier] and tier not in self.recorded]

    @cached_property
    def by_tier(self) -> list[TierForecast]:
        """The tiers that were met."""
        sampled = Counter(tier for tier, _who in self.peaks[self.widths[0]])
        met = [tier for tier in self.tiers if sampled[tier] or tier in self.recorded]
        return [self._tier(tier, sampled[tier]) for tier in met]

    @property
    def share_of_callers(self) -> Range:
        """Return the callers whom only the rule as it would be rejects, as a share of all, from 0 to 1."""
        if self.limits[0] == self.limits[1]:
            return NOTHING
        return self._share(self._newly(0, 1), self.sampled)

    @property
    def share_of_requests(self) -> Range:
        """Return the requests that the rule as it would be rejects beyond today's, as a share of all, from 0 to 1."""
        if not self.requests:
            return NOTHING
        more = [
            sum(max(0.0, tier.after.requests[level] - tier.before.requests[level]) for tier in self.by_tier)
            for level in range(3)
        ]
        return Range(min(more), more[EVEN], max(more)).times(1 / self.requests)

    @cached_property
    def by_hour(self) -> list[HourForecast]:
        """The hours of the period. A cell longer than an hour is counted in the hour in which it begins."""
        points = totals.series(self.period, self.source.rule, None, self.coverage, Granularity.HOUR)
        by_width = [self._hours_of(rows, [point.start for point in points]) for rows in self._beyond.values()]
        found = []
        for place, point in enumerate(points):
            requests = point.figures.requests
            before, after = (
                estimates.of_several([hours[place, side] for hours in by_width], requests) for side in (0, 1)
            )
            found.append(HourForecast(point.start, point.end, requests, before, after))
        return found

    def _hours_of(self, rows: Iterable[Beyond], starts: list[datetime]) -> dict[tuple[int, int], Range]:
        """Return what cells of one width reject, by the place of the hour and the side."""
        found: dict[tuple[int, int], Range] = defaultdict(lambda: NOTHING)
        for tier, at, counts in rows:
            place = max(0, bisect_right(starts, reading.moment_of(at)) - 1)
            for side in (0, 1):
                more = estimates.exact(_levels(counts, side)).times(self._scale(tier))
                found[place, side] = found[place, side].plus(more)
        return found

    @cached_property
    def top(self) -> list[CallerForecast]:
        """The sampled callers with the most requests in one cell of the first width. One query for each width."""
        peaks = {} if self.is_shared else self.peaks[self.widths[0]]
        keys = sorted(peaks, key=lambda key: (-peaks[key], key))[:MAX_CALLERS]
        found: dict[Key, tuple[int, int, int | None]] = {}
        for width in self.widths:
            levels = [_thresholds(limits, width, EVEN) for limits in self.limits]
            for tier, who, requests, first in reading.callers_beyond(
                self.source, width, levels, [who for _, who in keys]
            ):
                before, after, earliest = found.get((tier, who), (0, 0, None))
                firsts = [at for at in (first, earliest) if at is not None]
                found[tier, who] = max(before, requests[0]), max(after, requests[1]), min(firsts, default=None)
        rows = [(key, *found.get(key, (0, 0, None))) for key in keys]
        return [
            CallerForecast(*key, self.requests_of[key], peaks[key], before, after, reading.moment_at(at))
            for key, before, after, at in rows
        ]

    @cached_property
    def _exceeding(self) -> tuple[list[set[Key]], list[set[Key]]]:
        """The sampled callers beyond each threshold of the rule as it is, and as it would be."""
        before, after = ([self._beyond_level(limits, level) for level in range(3)] for limits in self.limits)
        return before, after

    def _beyond_level(self, limits: Limits, level: int) -> set[Key]:
        return {
            key
            for width, peaks in self.peaks.items()
            for key, peak in peaks.items()
            if (thresholds := limits.get(key[0], {}).get(width)) is not None and peak > thresholds[level]
        }

    @cached_property
    def _beyond(self) -> dict[Width, list[Beyond]]:
        """The requests beyond the thresholds, first those of the rule as it is. One query for each width."""
        exceeding = sorted({who for side in self._exceeding for _tier, who in side[SAFE]})
        found = {}
        for width in self.widths:
            thresholds = [_thresholds(limits, width, level) for limits in self.limits for level in range(3)]
            found[width] = reading.beyond(self.source, width, thresholds, exceeding) if exceeding else []
        return found

    def _tier(self, tier: str, sampled: int) -> TierForecast:
        figures = self.recorded.get(tier, Figures())
        newly, no_longer = (self._share(self._newly(*sides, tier), sampled) for sides in ((0, 1), (1, 0)))
        if self.limits[0][tier] == self.limits[1][tier]:
            newly = no_longer = NOTHING
        callers = sampled if self.is_shared else sampled * SAMPLED_ONE_IN
        before, after = (self._effect(tier, side, sampled, figures.requests) for side in (0, 1))
        return TierForecast(
            tier, figures.requests, sampled, before, after, newly.times(callers), no_longer.times(callers)
        )

    def _effect(self, tier: str, side: int, sampled: int, total: int) -> Effect:
        most, even, safe = (sum(key[0] == tier for key in keys) for keys in self._exceeding[side])
        by_width = [
            [
                sum(counts)
                for counts in zip(*(_levels(row.requests, side) for row in rows if row.tier == tier), strict=True)
            ]
            for rows in self._beyond.values()
        ]
        sums = [each for each in by_width if each] or [[0, 0, 0]]
        requests = max(each[MOST] for each in sums), max(each[EVEN] for each in sums), sum(each[SAFE] for each in sums)
        share = self._share((most, even, safe), sampled)
        if self.is_shared:
            return Effect(share, estimates.exact(requests))
        found = estimates.requests(requests, (most, even, safe), self._scale(tier), total)
        if not safe:  # whom the sample has missed may exceed it with all of their requests
            found = found._replace(high=min(share.high * total, total))
        return Effect(share.times(sampled * SAMPLED_ONE_IN), found)

    def _newly(self, first: int, second: int, tier: str | None = None) -> Levels:
        """Return how many sampled callers only the second of the two sides rejects, at each level."""
        pairs = zip(self._exceeding[first], self._exceeding[second], strict=True)
        most, even, safe = (sum(tier in (None, key[0]) for key in later - earlier) for earlier, later in pairs)
        return most, even, safe

    def _share(self, counts: Levels, sampled: int) -> Range:
        return estimates.exact(counts) if self.is_shared else estimates.share_of_callers(counts, sampled)

    def _scale(self, tier: str) -> float:
        """Return the requests of all callers of a tier for each one of the sampled ones."""
        if self.is_shared:
            return 1.0
        sampled, recorded = self._sampled_requests[tier], self.recorded.get(tier)
        return recorded.requests / sampled if recorded and sampled else float(SAMPLED_ONE_IN)

    @cached_property
    def _sampled_requests(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (tier, _who), requests in self.requests_of.items():
            found[tier] += requests
        return found


def forecast(before: RuleRecord | None, after: RuleRecord, period: Period) -> Forecast:
    """Return what `after` would have rejected in the period, compared with `before`, the rule as it is."""
    return Forecast(before, after, period)


def _thresholds(limits: Limits, width: Width, level: int) -> dict[str, int]:
    """Return a threshold by tier, of the tiers that have one of this width."""
    return {tier: of_tier[width][level] for tier, of_tier in limits.items() if width in of_tier}


def _levels(counts: tuple[int, ...], side: int) -> Levels:
    most, even, safe = counts[3 * side : 3 * side + 3]
    return most, even, safe
