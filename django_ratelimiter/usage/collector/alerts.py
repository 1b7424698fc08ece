"""Tells of what somebody should look at: a rule that refuses many requests, and collecting that is behind.

Each is told of once, when it begins, however many collectors there are: whoever stores its row is the one who tells.
It is over when it is clearly less, so that what wavers around its mark is told of once too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from django.db import router
from django.db.models import F, QuerySet, Sum

from ...models import UsageBucket, UsageEpisode
from ...signals import collector_behind, refusal_rate_exceeded
from ..times import Step, floor, stored
from .lag import Waiting, engine_time

logger = logging.getLogger("django_ratelimiter")

#: An episode is over when there is no more than this share of what began it.
OVER: Final = 0.75

REFUSING: Final = "refusing:"
BEHIND: Final = "behind"


@dataclass(frozen=True, slots=True)
class Marks:
    """What is worth telling.

    percent: a rule has refused more than this share of the requests that met it in the last `minutes` minutes, if they
    were `least` or more. behind: seconds since the oldest minute that waits to be collected has ended.
    Raises ValueError where nothing could be measured by them.
    """

    percent: float = 50.0
    minutes: int = 5
    least: int = 100
    behind: float = 300.0

    def __post_init__(self) -> None:
        if not (0 < self.percent <= 100 and self.minutes >= 1 and self.least >= 1 and self.behind > 0):
            raise ValueError(f"percent: above 0 and up to 100; minutes, least and behind: above 0. Not {self}.")


class Refusals(NamedTuple):
    """What a rule has decided in some minutes, in requests."""

    rule: str
    denied: int
    requests: int

    @property
    def percent(self) -> float:
        """Which share was refused."""
        return 100 * self.denied / self.requests if self.requests else 0.0


def now() -> datetime:
    """This moment, by the clock that minutes are counted by."""
    return datetime.fromtimestamp(engine_time(), UTC)


def tell(waited: Waiting, marks: Marks) -> None:
    """Tell of what has begun, and note what is over. waited: what waited before it was collected just now."""
    _tell_if_behind(waited, marks)
    # Before its counts are read: what another collector finds begun meanwhile is for that one to end.
    known = _episodes().filter(name__startswith=REFUSING)
    before = list(known.values_list("name", flat=True))
    refusals = list(_refusals(marks.minutes))
    for each in refusals:
        if each.percent > marks.percent and each.requests >= marks.least and _begins(REFUSING + each.rule):
            _tell_of(each, marks.minutes)
    still = {REFUSING + each.rule for each in refusals if each.percent > marks.percent * OVER}
    known.filter(name__in=set(before) - still).delete()


def _tell_if_behind(waited: Waiting, marks: Marks) -> None:
    if waited.seconds > marks.behind:
        if _begins(BEHIND):
            logger.warning("Collecting usage is behind by %d s; batches waiting: %d.", waited.seconds, waited.batches)
            collector_behind.send_robust(Waiting, seconds=waited.seconds, batches=waited.batches)
    elif waited.seconds <= marks.behind * OVER:
        _episodes().filter(name=BEHIND).delete()


def _tell_of(refusals: Refusals, minutes: int) -> None:
    rule, denied, requests = refusals
    logger.warning("Rule %s refused %d of %d requests in %d minutes.", *refusals, minutes, extra={"rule": rule})
    refusal_rate_exceeded.send_robust(Refusals, rule=rule, denied=denied, requests=requests, minutes=minutes)


def _refusals(minutes: int) -> Iterator[Refusals]:
    """Of each rule, in the last minutes that have ended."""
    end = floor(now(), Step.MINUTE, UTC)
    rows = UsageBucket.objects.using(_database()).filter(
        granularity=UsageBucket.Granularity.MINUTE,
        start__gte=stored(end - timedelta(minutes=minutes)),
        start__lt=stored(end),
    )
    sums = (
        rows.order_by()
        .values("rule_slug")
        .annotate(refused=Sum("denied"), met=Sum(F("allowed") + F("denied") + F("shadow_denied")))
    )
    for row in sums:
        yield Refusals(row["rule_slug"], int(row["refused"]), int(row["met"]))


def _begins(name: str) -> bool:
    """Whether this is news; from now on it is not, for any process."""
    return _episodes().get_or_create(name=name)[1]


def _episodes() -> QuerySet[UsageEpisode]:
    return UsageEpisode.objects.using(_database())


def _database() -> str:
    return router.db_for_write(UsageBucket)
