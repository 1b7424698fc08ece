"""Which buckets a report reads: the widest that fit, so that a year is read from days, and nothing is read twice.

The same requests are counted in a minute, an hour and a day, and minutes are deleted long before days. So a period is
cut into pieces of one granularity each; and where only wide buckets are left, it is widened to whole ones.
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
from ..times import Step, aware, buckets, floor, now, stored

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

#: From the narrowest to the widest.
STEPS: Final = (Step.MINUTE, Step.HOUR, Step.DAY)

#: Stand for "always" and "never" where buckets begin; within what every time zone can reckon with.
ALWAYS: Final = datetime(1, 1, 3, tzinfo=UTC)
NEVER: Final = datetime(9998, 1, 1, tzinfo=UTC)


class Period(NamedTuple):
    """From `start` up to, and without, `end`; both in UTC."""

    start: datetime
    end: datetime

    @property
    def step(self) -> Step:
        """How fine a series over this period is: some 370 buckets at most, up to a year."""
        length = self.end - self.start
        return Step.MINUTE if length <= 3 * HOUR else Step.HOUR if length <= 8 * DAY else Step.DAY

    @property
    def before(self) -> Period:
        """The period of the same length that ends where this one begins."""
        return Period(self.start - (self.end - self.start), self.start)


class Piece(NamedTuple):
    """The buckets of one granularity that begin from `start` up to, and without, `end`; in UTC."""

    granularity: Step
    start: datetime
    end: datetime

    @property
    def condition(self) -> Q:
        """What its rows are found by, of a model with `granularity` and `start`."""
        return Q(granularity=self.granularity, start__gte=stored(self.start), start__lt=stored(self.end))


@dataclass(frozen=True, slots=True)
class Kept:
    """From when on the buckets of each granularity hold everything; NEVER = there are none.

    since: when the first of them all begins, told by the finest there are of it; `None` = there are none.
    """

    whole: Mapping[Step, datetime]
    since: datetime | None

    def widened(self, period: Period) -> Period:
        """The period with its ends moved outward to whole hours or days where nothing finer is left."""
        start, end = self._floor(period.start), self._floor(period.end)
        return Period(start, period.end if end == period.end else following(end, self.finest(period.end)))

    def finest(self, moment: datetime) -> Step:
        """The finest granularity that is whole at this moment; minutes where none is."""
        return next((step for step in STEPS if self.whole[step] <= moment), Step.MINUTE)

    def step(self, period: Period, wanted: Step | None = None) -> Step:
        """How fine a series over this period is: as wanted, or wider where nothing finer is left at its start.

        wanted: `None` = what suits the length of the period.
        """
        return max(wanted or period.step, self.finest(period.start), key=STEPS.index)

    def pieces(self, period: Period, widest: Step = Step.DAY) -> list[Piece]:
        """The period in pieces, in order, without gap or overlap; none is of wider buckets than `widest`."""
        return list(self._cut(period.start, period.end, STEPS.index(widest)))

    def _floor(self, moment: datetime) -> datetime:
        return floor(moment, self.finest(moment), timezone.get_default_timezone())

    def _cut(self, start: datetime, end: datetime, place: int) -> Iterator[Piece]:
        if start >= end:
            return
        step = STEPS[place]
        if place == 0:
            yield Piece(step, start, end)
            return
        first, last = _ceil(max(start, self.whole[step]), step), floor(end, step, timezone.get_default_timezone())
        if first >= last:
            yield from self._cut(start, end, place - 1)
            return
        yield from self._cut(start, first, place - 1)
        yield Piece(step, first, last)
        yield from self._cut(last, end, place - 1)


def kept() -> Kept:
    """What there is to read. Three short queries."""
    first = {step: _first(step) for step in STEPS}
    return Kept({step: _whole(step, first) for step in STEPS}, _since(first))


def _since(first: Mapping[Step, datetime | None]) -> datetime | None:
    """A day in which counting began has a bucket that begins at midnight, and a minute that says when it was."""
    since: datetime | None = None
    end: datetime | None = None  # of the bucket that says so
    for step in reversed(STEPS):
        began = first[step]
        if began and (end is None or began < end):
            since, end = began, following(began, step)
    return since


def _first(step: Step) -> datetime | None:
    start: datetime | None = UsageBucket.objects.filter(granularity=step).aggregate(at=Min("start"))["at"]
    return start and aware(start)


def _whole(step: Step, first: Mapping[Step, datetime | None]) -> datetime:
    """From when on buckets of this granularity hold everything; the start of one of the next wider.

    Not before RETENTION, for what is older is deleted in no order. Nor in the first of them, if those of another
    granularity begin earlier: others were deleted, or those ones were counted before there were any of these.
    """
    began, days = first[step], settings.RETENTION[step]
    if began is None and step is not Step.MINUTE:
        return NEVER
    moment = ALWAYS if days is None else now() - timedelta(days=days)
    if began is not None and any(other and _earlier(step, began, each, other) for each, other in first.items()):
        moment = max(moment, following(began, step))
    return _ceil(moment, STEPS[min(STEPS.index(step) + 1, 2)])


def _earlier(step: Step, began: datetime, other: Step, at: datetime) -> bool:
    """Whether the first bucket of another granularity, at `at`, is of an earlier time than the first of this one."""
    zone, wider = timezone.get_default_timezone(), max(step, other, key=STEPS.index)
    return floor(at, wider, zone) < floor(began, wider, zone)


def _ceil(moment: datetime, step: Step) -> datetime:
    start = floor(moment, step, timezone.get_default_timezone())
    return start if start == moment else following(moment, step)


def following(moment: datetime, step: Step) -> datetime:
    """The start of the next bucket of the project's clock."""
    starts = buckets(moment, moment + 3 * DAY, step, timezone.get_default_timezone())
    return next(islice(starts, 1, None))
