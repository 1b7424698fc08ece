"""Proposes limits that would have rejected at most a chosen share of callers, from the recorded samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import gt
from typing import Final, NamedTuple

from ...engine.limits import SECONDS
from ...rules.records import RuleRecord
from ...usage.reports.coverage import Coverage, Period
from . import estimates, reading
from .cells import Width
from .estimates import SAMPLED_ONE_IN, Range
from .forecast import Forecast

#: The windows for which limits are proposed.
MINUTE, HOUR, DAY = (Width(SECONDS[unit]) for unit in ("minute", "hour", "day"))
WIDTHS: Final = (MINUTE, HOUR, DAY)


class Quantiles(NamedTuple):
    """What half of the callers did not exceed, 90 percent, 99 percent, and all."""

    p50: int
    p90: int
    p99: int
    largest: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A limit for one tier, "" = no tier. window: seconds. quota, burst: units; a burst of `None` = no bucket.

    busiest: units that sampled callers used in their busiest window. callers: number of sampled callers. above: how
    many of them it rejects; share: the same for all callers, from 0 to 1. is_certain: there are enough callers to
    estimate so small a share. attack_share, attack_requests: what it rejects of the callers and of the requests of the
    other period; `None` = there is none, or nothing is recorded there.
    """

    tier: str
    window: int
    quota: int
    burst: int | None
    busiest: Quantiles
    callers: int
    above: int
    share: Range
    is_certain: bool
    attack_share: Range | None = None
    attack_requests: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """The proposals, and the data that they are based on.

    days: length of the period. largest: the most requests of any caller in an hour, sampled or not; `None` = not known.
    """

    proposals: list[Proposal]
    sampled: int
    callers: int
    days: float
    largest: int | None


def advise(
    rule: RuleRecord, period: Period, share: float, attack: Period | None = None, coverage: Coverage | None = None
) -> Advice:
    """Return proposals for each tier with samples. share: of callers that may be rejected, from 0 to 1.

    attack: is excluded from the period, if it is a part of it: its callers must not raise the proposals.
    A fixed number of queries: the samples of each period are read once. Memory: that of a `Forecast` for each.
    """
    calm = Forecast(None, rule, period, widths=WIDTHS, without=attack, coverage=coverage)
    found = [each for tier in calm.tiers for each in _of_tier(calm, tier, rule.cost, share)]
    if attack is not None:
        thresholds = {width: _allowed_by(found, width, rule.cost) for width in WIDTHS}
        other = Forecast(None, rule, attack, widths=WIDTHS, beyond=thresholds, coverage=calm.coverage)
        if other.sampled:
            found = _against(other, found, rule.cost)
    seconds = (period.end - period.start).total_seconds()
    if attack is not None:
        seconds -= max(0.0, (min(attack.end, period.end) - max(attack.start, period.start)).total_seconds())
    return Advice(found, calm.sampled, calm.callers, seconds / SECONDS["day"], reading.largest(calm.source))


def _of_tier(calm: Forecast, tier: str, cost: int, share: float) -> Iterable[Proposal]:
    units = {width: _units(calm, tier, width, cost) for width in WIDTHS}
    callers = len(units[MINUTE])
    if not callers:
        return
    limits: list[tuple[Width, int, int | None]] = [(width, _quota(units[width], share), None) for width in WIDTHS]
    quota, burst = limits[1][1], limits[0][1]
    if burst < quota:
        limits.append((HOUR, quota, burst))
    for width, quota, burst_or_none in limits:
        parts = Quantiles(*(estimates.quantile(units[width], part) for part in (0.5, 0.9, 0.99, 1)))
        above = _above(calm, tier, _allowed(width, quota, burst_or_none), cost)
        of_all = estimates.share_of_callers((above, above, above), callers)
        yield Proposal(
            tier, width.seconds, quota, burst_or_none, parts, callers, above, of_all, callers * share >= 1
        )  # fmt: skip


def _against(attack: Forecast, proposals: list[Proposal], cost: int) -> list[Proposal]:
    """Return the proposals with what they would have rejected in this period."""
    found = []
    places = {width: [each for each in proposals if each.window == width.seconds] for width in WIDTHS}
    for each in proposals:
        width = Width(each.window)
        callers = attack.tally.sampled(each.tier)
        above = _above(attack, each.tier, _allowed(width, each.quota, each.burst), cost)
        place = places[width].index(each) - len(places[width])  # the thresholds of the rule itself come first
        rows = attack.tally.beyond(width).items()
        requests = sum(row[place] for (tier, _at), row in rows if tier == each.tier)
        requests *= 1 if attack.is_shared else SAMPLED_ONE_IN
        share = estimates.share_of_callers((above, above, above), callers)
        found.append(replace(each, attack_share=share, attack_requests=float(requests)))
    return found


def _allowed_by(proposals: list[Proposal], width: Width, cost: int) -> list[dict[str, int]]:
    """Return the requests that each proposal of a window allows in it, by its tier."""
    return [{each.tier: (each.quota + (each.burst or 0)) // cost} for each in proposals if each.window == width.seconds]


def _allowed(width: Width, quota: int, burst: int | None) -> dict[Width, int]:
    """Return the units that are allowed in cells, by their width."""
    if burst is None:
        return {width: quota}
    return {MINUTE: burst + quota // 60, HOUR: quota + burst}


def _above(found: Forecast, tier: str, most: Mapping[Width, int], cost: int) -> int:
    """Return how many sampled callers need more units than these in any of these widths."""
    peaks = zip(*(found.tally.peaks_of(tier, width) for width in most), strict=True)
    thresholds = [threshold // cost for threshold in most.values()]
    return sum(any(map(gt, each, thresholds)) for each in peaks)


def _units(found: Forecast, tier: str, width: Width, cost: int) -> list[int]:
    """Return the units that each sampled caller used in its busiest cell, sorted."""
    return sorted(peak * cost for peak in found.tally.peaks_of(tier, width))


def _quota(units: list[int], share: float) -> int:
    """Return the lowest quota that at most this share of the callers exceeds, rounded up to two digits."""
    needed: int = max(1, units[len(units) - 1 - int(share * len(units))])
    step = 10 ** max(0, len(str(needed)) - 2)
    return int(-(-needed // step) * step)
