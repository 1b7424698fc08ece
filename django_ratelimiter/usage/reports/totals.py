"""The figures of reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final, NamedTuple

from django.db.models import Max, Q, Sum, Value
from django.utils import timezone
from django.utils.translation import gettext as _

from ...models import UsageBatch, UsageBucket, UsageTotal
from ...rules.formatting import units
from ..times import Granularity, aware, floor, now
from .coverage import Period

#: The lowest estimate that is shown as a number.
LEAST_ESTIMATE: Final = 100


def last(length: timedelta) -> Period:
    """Return the period of this length up to the start of the running minute, which is not yet collected."""
    end = floor(now(), Granularity.MINUTE, timezone.get_current_timezone())
    return Period(end - length, end)


def month(now: datetime, *, is_last: bool = False, first: int = 1) -> Period:
    """Return the month up to `now`, in the time zone of that; is_last: the whole month before.

    first: the day on which months begin; those without it, on their last one.
    """
    start = _begin(datetime.combine(now, time.min, now.tzinfo), first)
    if is_last:
        return Period(_begin(start - timedelta(days=1), first).astimezone(UTC), start.astimezone(UTC))
    return Period(start.astimezone(UTC), max(now, start + timedelta(minutes=1)).astimezone(UTC))


def _begin(day: datetime, first: int) -> datetime:
    while day.day != first and not (day.day < first and (day + timedelta(days=1)).day == 1):
        day -= timedelta(days=1)
    return day


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of requests. In a sum of several rules, a request counts once for each rule that matched it: see
    `Report.together`.

    allowed: they went through; soft_exceeded is a part of them. rejected: by the rule. rejected_by_other: by another
    rule. shadow_rejected: would have been rejected if the rule were enforced.
    degraded: a part of all, decided by a process without Redis. units: what the allowed ones cost, less refunds.
    exempt: the part of allowed to which no rule was applied, known of totals of requests.
    """

    allowed: int = 0
    rejected: int = 0
    shadow_rejected: int = 0
    soft_exceeded: int = 0
    degraded: int = 0
    rejected_by_other: int = 0
    units: int = 0
    exempt: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*[getattr(self, name) + getattr(other, name) for name in (*UsageBucket.COUNTS, "exempt")])

    @property
    def requests(self) -> int:
        """Return the number of requests that the rule matched."""
        return self.allowed + self.rejected + self.rejected_by_other + self.shadow_rejected

    @property
    def has_costs(self) -> bool:
        """Return whether a request has cost another number of units than 1."""
        return self.units != self.allowed

    @property
    def rejection_rate(self) -> float | None:
        """Return the rejected share, from 0 to 1; `None` without requests."""
        return self.rejected / self.requests if self.requests else None


#: The sums of a query, in the order of Figures, and those of totals of requests. Units belong to rules: there each
#: costs 1.
SUMS: Final = {f"sum_{name}": Sum(name) for name in UsageBucket.COUNTS}
_OF_REQUESTS: Final = SUMS | {"sum_rejected_by_other": Sum(Value(0)), "sum_units": Sum("allowed")}
SUMS_OF_REQUESTS: Final = _OF_REQUESTS | {"sum_exempt": Sum("exempt")}


def by_start(condition: Q) -> dict[datetime, Figures]:
    """Return the figures of all rules, by the stored start of their buckets. One query.

    They are those of the total of requests; where there is none, the sum of the rules. condition: selects the rows.
    """
    models: tuple[Any, ...] = ((UsageBucket, SUMS), (UsageTotal, _OF_REQUESTS))
    of_rules, of_requests = (
        model.objects.order_by().filter(condition).values_list("start", Value(place)).annotate(**sums)
        for place, (model, sums) in enumerate(models)
    )
    both = of_rules.union(of_requests, all=True).order_by()  # else Django 6.1 orders it as the first model is
    rows = sorted(both)  # so that the total replaces the sum
    return {start: Figures(*map(int, figures)) for start, _place, *figures in rows}


class Total(NamedTuple):
    """The figures of one rule and tier. tier_slug "" = callers without a tier."""

    rule_slug: str
    tier_slug: str
    figures: Figures


class Point(NamedTuple):
    """The figures of one bucket of a series, from `start` to `end` in UTC; the first and last may be shorter."""

    start: datetime
    end: datetime
    figures: Figures


class Freshness(NamedTuple):
    """The age of the figures; `None` = there are none.

    collected_at: when counts were last added, if within the last days. latest: the last minute with usage.
    """

    collected_at: datetime | None
    latest: datetime | None


def freshness() -> Freshness:
    """Return when usage was last collected, and the last minute with usage. Two queries."""
    collected_at = UsageBatch.objects.aggregate(at=Max("collected_at"))["at"]
    latest = UsageBucket.objects.filter(granularity=Granularity.MINUTE).aggregate(at=Max("start"))["at"]
    return Freshness(collected_at and aware(collected_at), latest and aware(latest))


def believable(figure: int, *, is_estimate: bool) -> int | None:
    """Return the figure of a caller; `None` = few, because an estimate below 100 rests on too few reports."""
    return None if is_estimate and 0 < figure < LEAST_ESTIMATE else figure


def about(figure: int | None, *, is_estimate: bool) -> str:
    """Return the figure of a caller as text: "40", and of estimates "about 1,600" or "few"; `None` = few."""
    if figure is None or believable(figure, is_estimate=is_estimate) is None:
        return _("few")
    return _("about %s") % units(figure) if is_estimate else units(figure)
