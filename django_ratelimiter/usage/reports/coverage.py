"""The buckets that a report reads: the widest that fit, so that a year is read from days, and nothing is read twice.

The same requests are counted in a minute, an hour and a day, and minutes are deleted long before days. So a period is
split into ranges of one granularity each. If only wide buckets are left, it is extended to whole ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from django.db.models import Min, Q
from django.utils import timezone

from ...conf import settings
from ...models import UsageBucket
from ..times import Granularity, aware, buckets, floor, now, stored

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

#: From the narrowest to the widest.
GRANULARITIES: Final = (Granularity.MINUTE, Granularity.HOUR, Granularity.DAY)

#: Mean "always" and "never" for the start of buckets; valid in every time zone.
ALWAYS: Final = datetime(1, 1, 3, tzinfo=UTC)
NEVER: Final = datetime(9998, 1, 1, tzinfo=UTC)


class Period(NamedTuple):
    """From `start` to `end`, exclusive; both in UTC."""

    start: datetime
    end: datetime

    @property
    def granularity(self) -> Granularity:
        """Return the granularity of a series over this period: at most about 370 buckets, up to a year."""
        length = self.end - self.start
        return Granularity.MINUTE if length <= 3 * HOUR else Granularity.HOUR if length <= 8 * DAY else Granularity.DAY

    @property
    def before(self) -> Period:
        """Return the period of the same length that ends where this one begins."""
        return Period(self.start - (self.end - self.start), self.start)


class BucketRange(NamedTuple):
    """The buckets of one granularity that begin from `start` to `end`, exclusive; in UTC."""

    granularity: Granularity
    start: datetime
    end: datetime

    @property
    def condition(self) -> Q:
        """Return the condition that selects its rows, of a model with `granularity` and `start`."""
        return Q(granularity=self.granularity, start__gte=stored(self.start), start__lt=stored(self.end))


@dataclass(frozen=True, slots=True)
class Coverage:
    """The buckets that are left in the database.

    complete_from: the time from which the buckets of each granularity are complete; NEVER = there are none.
    since: the start of the first bucket, by the finest granularity that has it; `None` = there are none.
    """

    complete_from: Mapping[Granularity, datetime]
    since: datetime | None

    def widen(self, period: Period) -> Period:
        """Return the period extended to whole hours or days if no finer buckets are left."""
        start, end = self._floor(period.start), self._floor(period.end)
        return Period(start, period.end if end == period.end else next_start(end, self.finest(period.end)))

    def finest(self, moment: datetime) -> Granularity:
        """Return the finest granularity that is complete at this time; minutes if none is."""
        return next(
            (granularity for granularity in GRANULARITIES if self.complete_from[granularity] <= moment),
            Granularity.MINUTE,
        )

    def granularity(self, period: Period) -> Granularity:
        """Return the granularity of a series over this period: that of its length, or wider if that is not left."""
        return max(period.granularity, self.finest(period.start), key=GRANULARITIES.index)

    def bucket_ranges(self, period: Period, widest: Granularity = Granularity.DAY) -> list[BucketRange]:
        """Split the period into ranges, in order, without gap or overlap; none has wider buckets than `widest`."""
        return list(self._cut(period.start, period.end, GRANULARITIES.index(widest)))

    def _floor(self, moment: datetime) -> datetime:
        return floor(moment, self.finest(moment), timezone.get_default_timezone())

    def _cut(self, start: datetime, end: datetime, place: int) -> Iterator[BucketRange]:
        if start >= end:
            return
        granularity = GRANULARITIES[place]
        if place == 0:
            yield BucketRange(granularity, start, end)
            return
        first, last = (
            _ceil(max(start, self.complete_from[granularity]), granularity),
            floor(end, granularity, timezone.get_default_timezone()),
        )
        if first >= last:
            yield from self._cut(start, end, place - 1)
            return
        yield from self._cut(start, first, place - 1)
        yield BucketRange(granularity, first, last)
        yield from self._cut(last, end, place - 1)


def read_coverage() -> Coverage:
    """Return which buckets are left. Three short queries."""
    first = {granularity: _first_start(granularity) for granularity in GRANULARITIES}
    return Coverage({granularity: _complete_from(granularity, first) for granularity in GRANULARITIES}, _since(first))


def _since(first: Mapping[Granularity, datetime | None]) -> datetime | None:
    """Return when counting began. The first day's bucket begins at midnight, so its first minute is more precise."""
    since: datetime | None = None
    end: datetime | None = None  # of the bucket that `since` is from
    for granularity in reversed(GRANULARITIES):
        began = first[granularity]
        if began and (end is None or began < end):
            since, end = began, next_start(began, granularity)
    return since


def _first_start(granularity: Granularity) -> datetime | None:
    start: datetime | None = UsageBucket.objects.filter(granularity=granularity).aggregate(at=Min("start"))["at"]
    return start and aware(start)


def _complete_from(granularity: Granularity, first: Mapping[Granularity, datetime | None]) -> datetime:
    """Return the time from which buckets of this granularity are complete; the start of one of the next wider.

    Not before RETENTION, because older ones are deleted in any order. If those of another granularity begin earlier,
    the first ones of this granularity are not complete: some were deleted, or were not counted yet.
    """
    began, days = first[granularity], settings.RETENTION[granularity]
    if began is None and granularity is not Granularity.MINUTE:
        return NEVER
    moment = ALWAYS if days is None else now() - timedelta(days=days)
    if began is not None and any(
        other and _begins_earlier(granularity, began, each, other) for each, other in first.items()
    ):
        moment = max(moment, next_start(began, granularity))
    return _ceil(moment, GRANULARITIES[min(GRANULARITIES.index(granularity) + 1, 2)])


def _begins_earlier(granularity: Granularity, began: datetime, other: Granularity, at: datetime) -> bool:
    """Return whether the first bucket of another granularity, at `at`, is earlier than the first of this one."""
    zone, wider = timezone.get_default_timezone(), max(granularity, other, key=GRANULARITIES.index)
    return floor(at, wider, zone) < floor(began, wider, zone)


def _ceil(moment: datetime, granularity: Granularity) -> datetime:
    start = floor(moment, granularity, timezone.get_default_timezone())
    return start if start == moment else next_start(moment, granularity)


def next_start(moment: datetime, granularity: Granularity) -> datetime:
    """Return the start of the next bucket in the project's time zone."""
    starts = buckets(moment, moment + 3 * DAY, granularity, timezone.get_default_timezone())
    return next(islice(starts, 1, None))
