"""Alerts: a rule rejects many requests, or collecting is behind.

Each alert is sent once, when its condition begins, however many collectors run: the collector that stores its row sends
it. The condition ends well below its threshold, so that a figure that wavers around the threshold sends one alert.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import router
from django.db.models import QuerySet, Sum

from ...backend import get_engine
from ...engine.usage import minute_of
from ...exceptions import EngineUnavailable
from ...logs import logger
from ...models import UsageBucket, UsageEpisode
from ...signals import collector_behind, rejection_rate_exceeded
from ...values.terminal import visible
from ..times import Granularity, floor, stored

#: A condition ends at this share of its threshold.
END_SHARE: Final = 0.75

REJECTING: Final = "rejecting:"
BEHIND: Final = "behind"


class Lag(NamedTuple):
    """Batches that wait to be collected.

    seconds: since the end of the oldest waiting minute; 0 = nothing waits. Normally not more than the time between
    two collections. batches: their number.
    """

    seconds: float
    batches: int


def lag() -> Lag:
    """Return the lag. Closes past minutes, but collects nothing. Raises EngineUnavailable."""
    batches = get_engine().take_usage()
    if not batches:
        return Lag(0.0, 0)
    ended = (min(map(minute_of, batches)) + 1) * 60
    return Lag(max(engine_time() - ended, 0.0), len(batches))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of the two alerts.

    percent: a rule has rejected more than this share of the requests that it matched in the last `minutes` minutes, if
    there were `least` or more. behind: seconds since the oldest minute that is not yet collected has ended.
    Raises ValueError for values that no figure could reach.
    """

    percent: float = 50.0
    minutes: int = 5
    least: int = 100
    behind: float = 300.0

    def __post_init__(self) -> None:
        if not (0 < self.percent <= 100 and self.minutes >= 1 and self.least >= 1 and self.behind > 0):
            raise ValueError(f"percent: above 0 and up to 100; minutes, least and behind: above 0. Not {self}.")


class RejectionRate(NamedTuple):
    """The requests that a rule decided in some minutes, and how many of them it rejected."""

    rule: str
    rejected: int
    requests: int

    @property
    def percent(self) -> float:
        """Return the rejected share in percent."""
        return 100 * self.rejected / self.requests if self.requests else 0.0


def engine_time() -> float:
    """Return the engine's time in seconds since the Unix epoch; this process's if the engine is unavailable."""
    seen: Any = getattr(get_engine(), "partitions", None)
    try:
        return time.time() if seen is None else seen.now_us() / 1_000_000
    except EngineUnavailable:
        return time.time()


def now() -> datetime:
    """Return the current time by the engine's clock, which defines the minutes."""
    return datetime.fromtimestamp(engine_time(), UTC)


def send_alerts(lag: Lag, thresholds: Thresholds) -> None:
    """Send an alert for each condition that begins, and delete those that end. lag: before collecting."""
    _alert_if_behind(lag, thresholds)
    # Read before the counts: a condition that another collector stores meanwhile is that collector's to end.
    known = _episodes().filter(name__startswith=REJECTING)
    before = list(known.values_list("name", flat=True))
    rates = list(_rejection_rates(thresholds.minutes))
    for each in rates:
        if each.percent > thresholds.percent and each.requests >= thresholds.least and _is_first(REJECTING + each.rule):
            _send_rejection_rate(each, thresholds.minutes)
    still = {REJECTING + each.rule for each in rates if each.percent > thresholds.percent * END_SHARE}
    known.filter(name__in=set(before) - still).delete()


def _alert_if_behind(lag: Lag, thresholds: Thresholds) -> None:
    if lag.seconds > thresholds.behind:
        if _is_first(BEHIND):
            logger.warning("Collecting usage is behind by %d s; batches waiting: %d.", lag.seconds, lag.batches)
            collector_behind.send_robust(Lag, seconds=lag.seconds, batches=lag.batches)
    elif lag.seconds <= thresholds.behind * END_SHARE:
        _episodes().filter(name=BEHIND).delete()


def _send_rejection_rate(rate: RejectionRate, minutes: int) -> None:
    rule, rejected, requests = rate
    text = "Rule %s rejected %d of %d requests in %d minutes."
    logger.warning(text, visible(rule), rejected, requests, minutes, extra={"rule": visible(rule)})
    rejection_rate_exceeded.send_robust(RejectionRate, rule=rule, rejected=rejected, requests=requests, minutes=minutes)


def _rejection_rates(minutes: int) -> Iterator[RejectionRate]:
    """Yield the rate of each rule in the last complete minutes."""
    end = floor(now(), Granularity.MINUTE, UTC)
    rows = UsageBucket.objects.using(_database()).filter(
        granularity=Granularity.MINUTE,
        start__gte=stored(end - timedelta(minutes=minutes)),
        start__lt=stored(end),
    )
    sums = (
        rows.order_by().values("rule_slug").annotate(rejected_requests=Sum("rejected"), met=Sum(UsageBucket.REQUESTS))
    )
    for row in sums:
        yield RejectionRate(row["rule_slug"], int(row["rejected_requests"]), int(row["met"]))


def _is_first(name: str) -> bool:
    """Return whether this process is the first to store the condition; False for all others until it ends."""
    return _episodes().get_or_create(name=name)[1]


def _episodes() -> QuerySet[UsageEpisode]:
    return UsageEpisode.objects.using(_database())


def _database() -> str:
    return router.db_for_write(UsageBucket)
