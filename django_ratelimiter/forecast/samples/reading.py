"""Reads samples: one query for a period, ordered by caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, starmap
from operator import itemgetter
from typing import Any, NamedTuple

from django.db.models import F, Q, QuerySet, Sum

from ...engine.base import Alias
from ...models import UsageBucket, UsageSample
from ...usage.reports.coverage import Period
from ...usage.times import Granularity, aware, stored

#: Number of samples that are fetched at once.
MAX_FETCHED = 10_000


class Source(NamedTuple):
    """The requests to read: those of one rule in a period. is_shared: all callers share one counter."""

    rule: str
    period: Period
    is_shared: bool = False


class CallerMinutes(NamedTuple):
    """A sampled caller in one tier. who: its digest. minutes: their starts in microseconds, each with its requests."""

    tier: str
    who: str
    minutes: list[tuple[int, int]]


class _Starts(dict[datetime, int]):
    """The start of each minute, in microseconds since the Unix epoch."""

    def __missing__(self, minute: datetime) -> int:
        found = self[minute] = int(aware(minute).timestamp()) * 1_000_000
        return found


def callers(source: Source) -> Iterator[CallerMinutes]:
    """Yield the callers of the period, each with its minutes in order; all of a shared counter as one. One query."""
    starts = _Starts()
    if source.is_shared:
        yield from _shared(source, starts)
        return
    rows: QuerySet[Any, Any] = UsageSample.objects.filter(_within(source, "minute"), rule_slug=source.rule)
    rows = rows.order_by("partition_hash", "tier_slug", "minute")
    rows = rows.values_list("partition_hash", "tier_slug", "minute", "count")
    for (who, tier), some in groupby(rows.iterator(MAX_FETCHED), itemgetter(0, 1)):
        yield CallerMinutes(tier, who, [(starts[minute], count) for _who, _tier, minute, count in some])


def aliases(source: Source, digests: Sequence[str]) -> Iterator[Alias]:
    """Yield the aliases of these sampled callers that can be read. One query."""
    rows = UsageSample.objects.filter(_within(source, "minute"), rule_slug=source.rule, partition_hash__in=digests)
    yield from starmap(Alias.of, rows.exclude(tail="").order_by().values_list("partition_hash", "tail").distinct())


def _shared(source: Source, starts: _Starts) -> Iterator[CallerMinutes]:
    """Yield the minutes of a rule with a counter that callers share: these are counted, not sampled."""
    rows: QuerySet[Any, Any] = UsageBucket.objects.filter(
        _within(source, "start"), rule_slug=source.rule, granularity=Granularity.MINUTE
    ).order_by("start")
    summed = rows.values("start").annotate(requests=Sum(F("allowed") + F("rejected") + F("shadow_rejected")))
    if found := [(starts[start], int(requests)) for start, requests in summed.values_list("start", "requests")]:
        yield CallerMinutes("", "", found)


def _within(source: Source, column: str) -> Q:
    """Return the condition that a time is in the period of the source."""
    start, end = map(stored, source.period)
    return Q(**{f"{column}__gte": start, f"{column}__lt": end})
