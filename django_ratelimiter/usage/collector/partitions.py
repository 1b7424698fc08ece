"""Moves partition statistics from the engine to SQL: the top ones, and samples.

Nothing is added up here: each figure is a maximum, whichever collector writes it, and however often. So
collectors can be killed, repeated, and run at the same time. An hour's top partitions are deleted from the engine when
the hour is over and stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction
from django.db.models import Count, F, Max, Q, QuerySet, Sum

from ...databases import limit_wait, upsert
from ...engine.base import Engine, tail_of
from ...engine.call import OVER_ALL_RULES
from ...engine.partition_stats import MINUTE_US, Hour, merge_top
from ...models import TopCaller, TopPartition, UsageBucket, UsageSample, UsageTotal
from ..times import Granularity, start_of, starts_of, stored
from .upsert import slug

#: Maximum rows for each rule and start, and for each rule and minute.
MAX_PARTITIONS: Final = 100

#: Minutes by which the clocks of an engine's servers may differ; until then an hour may still be counted in.
GRACE_MINUTES: Final = 2

#: Number of hours and rules whose top partitions are read at once: of each at most 800 counts in a shard.
AT_ONCE: Final = 10

HOUR: Final[str] = Granularity.HOUR
DAY: Final[str] = Granularity.DAY

#: Allowed and rejected, by partition.
Weights = Mapping[str, tuple[int, int]]

#: The top partitions of a rule, or the top callers of an identity.
Rows = QuerySet[TopPartition] | QuerySet[TopCaller]


class Figures(NamedTuple):
    """The columns of a top partition that are written."""

    allowed: int
    rejected: int
    estimated: bool
    tail: str

    def merged(self, other: Figures) -> Figures:
        """Return the higher ones, which are estimates if either are."""
        allowed, rejected = max(self.allowed, other.allowed), max(self.rejected, other.rejected)
        return Figures(allowed, rejected, self.estimated or other.estimated, self.tail or other.tail)


def collect_partitions(engine: Engine, database: str, progress: Callable[[], None] = lambda: None) -> None:
    """Store the engine's statistics; a project's own engine may have none.

    progress: called repeatedly, because a backlog takes time.
    The engine's clock decides which hours are over, because ours may be wrong. Raises EngineUnavailable and
    OperationalError; nothing is lost then.
    """
    stats = getattr(engine, "partitions", None)
    if stats is None:
        return
    before = stats.now_us() // MINUTE_US - GRACE_MINUTES
    hours = sorted(stats.hours())
    if hours:
        _store_hours(database, stats, hours, before, progress)
    while samples := stats.samples(before, 1):
        progress()
        for minute, counts in samples.items():
            _store_samples(database, minute, counts)
        stats.drop_samples(samples)


def _store_hours(database: str, stats: Any, hours: Sequence[Hour], before: int, progress: Callable[[], None]) -> None:
    """Store these, and delete complete hours from the engine. before: the minute before which nothing is added."""
    over, estimated = before // 60, getattr(stats, "estimated_hours", set[int]())
    estimated.clear()  # `top_partitions` adds to it; of an hour, the callers over all rules are read first
    for first in range(0, len(hours), AT_ONCE):
        some, complete = hours[first : first + AT_ONCE], list[Hour]()
        for each, weights in zip(some, stats.top_partitions(some, MAX_PARTITIONS), strict=True):
            progress()
            hour, rule = each
            if _store_top(database, rule, hour, weights, hour in estimated) and hour < over:
                complete.append(each)
        stats.drop_top(complete)


def _store_top(database: str, rule: str, hour: int, weights: Weights, estimated: bool = False) -> bool:
    """Store these; False if nothing of this rule and day is stored yet, so that there is no row to lock.

    rule: its slug, or the label of callers over all rules; then the row to lock is one of any rule.
    """
    model, of = _model_of(rule)
    starts = starts_of(hour * 60)
    either = starts[DAY], starts_of(hour * 60 + 59)[DAY]  # days that begin at half past may share an hour of the engine
    days = UsageBucket.objects.using(database).filter(granularity=DAY, start__in=either)
    if model is TopPartition:
        days = days.filter(**of)
    rows = model.objects.using(database).filter(**of)
    first = days.order_by("pk").values_list("pk", flat=True).first()
    if first is None:
        return False
    with transaction.atomic(using=database, durable=True):
        limit_wait(database)
        # Until the end of this transaction, no other collector writes the top partitions of this rule and day.
        if not days.filter(pk=first).update(allowed=F("allowed")):
            return False
        most = _most(database, model, of, hour) if estimated else None
        figures = {
            whom: Figures(*(_capped(pair, most) if most else pair), estimated, tail_of(whom))
            for whom, pair in weights.items()
        }
        if _merge_top(rows, of, HOUR, starts[HOUR], figures, estimated):
            _merge_top(rows, of, DAY, starts[DAY], _day_sums(rows, hour, starts[DAY]))
    return True


def _model_of(rule: str) -> tuple[type[TopPartition | TopCaller], dict[str, str]]:
    """Return the model of these top partitions, and the column that selects them."""
    if rule.startswith(OVER_ALL_RULES):
        return TopCaller, {"identity": slug(rule.removeprefix(OVER_ALL_RULES), 200)}
    return TopPartition, {"rule_slug": slug(rule)}


def _most(
    database: str, model: type[TopPartition | TopCaller], of: Mapping[str, str], hour: int
) -> tuple[int, int] | None:
    """Return the requests of the rule, or of all rules, and the rejected ones: none of a caller can exceed them.

    `None` = not counted. They are those of the hours that this hour of the engine overlaps.
    """
    hours = {starts_of(minute)[HOUR] for minute in (hour * 60, hour * 60 + 59)}
    counted: Any = UsageTotal.objects.all() if model is TopCaller else UsageBucket.objects.filter(**of)
    sums = counted.using(database).filter(granularity=HOUR, start__in=hours).order_by()
    allowed, rejected, shadow = sums.aggregate(*map(Sum, _COUNTS)).values()
    if allowed is None:
        return None
    return allowed + rejected + shadow, rejected + (shadow if model is TopPartition else 0)


_COUNTS: Final = ("allowed", "rejected", "shadow_rejected")


def _capped(pair: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    """Return the estimates of a caller, as far as its rule has counted so many."""
    rejected = min(pair[1], most[1])
    return min(pair[0], most[0] - rejected), rejected


def _day_sums(rows: Rows, hour: int, day: datetime) -> dict[str, Figures]:
    """Return the sums of the hours of a day."""
    starts = {starts_of(each * 60)[HOUR] for each in range(hour - 26, hour + 27) if starts_of(each * 60)[DAY] == day}
    sums = (
        rows.filter(granularity=HOUR, start__in=starts)
        .order_by()
        .values_list("partition")
        .annotate(Sum("allowed"), Sum("rejected"), estimates=Count("pk", filter=Q(estimated=True)), tails=Max("tail"))
    )
    return {who: Figures(allowed, rejected, estimates > 0, tail) for who, allowed, rejected, estimates, tail in sums}


def _merge_top(
    rows: Rows,
    of: Mapping[str, str],
    granularity: str,
    start: datetime,
    figures: Mapping[str, Figures],
    estimated: bool = False,
) -> bool:
    """Store the top partitions of these and the stored ones; return whether any row changed.

    of: as in `rows`. estimated: the stored ones are estimates by now.
    """
    rows = rows.filter(granularity=granularity, start=start)
    stored_figures = rows.values_list("partition", *Figures._fields)
    before = {partition: Figures(*columns) for partition, *columns in stored_figures}
    both = {whom: had._replace(estimated=had.estimated or estimated) for whom, had in before.items()}
    for partition, found in figures.items():
        whom = slug(partition, 200)
        both[whom] = found.merged(both.get(whom, found))
    top = merge_top({whom: (each.allowed, each.rejected) for whom, each in both.items()}, MAX_PARTITIONS)
    after = {whom: both[whom] for whom in top}
    if after == before:
        return False
    rows.filter(partition__in=before.keys() - after.keys()).delete()
    changed = [
        rows.model(**of, granularity=granularity, start=start, partition=partition, **found._asdict())
        for partition, found in after.items()
        if before.get(partition) != found
    ]
    upsert(rows.db, changed, (*of, "granularity", "start", "partition"), Figures._fields)
    return True


def _store_samples(database: str, minute: int, counts: Mapping[tuple[str, str], int]) -> None:
    """Store the first partitions of each rule, sorted by name: they are the same in each minute.

    counts: by label and partition.
    """
    rows: list[UsageSample] = []
    left: defaultdict[str, int] = defaultdict(lambda: MAX_PARTITIONS)
    start = stored(start_of(minute))
    for (label, partition), count in sorted(counts.items(), key=lambda each: (each[0][1], each[0][0])):
        rule, _, tier = label.partition("|")
        left[rule] -= 1
        if left[rule] >= 0:
            names = {"rule_slug": slug(rule), "tier_slug": slug(tier), "partition_hash": slug(partition, 200)}
            rows.append(UsageSample(**names, minute=start, count=count, tail=tail_of(partition)))
    upsert(database, rows, ("rule_slug", "minute", "partition_hash", "tier_slug"), ("count", "tail"))
