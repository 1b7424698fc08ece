"""Reads samples, in a fixed number of queries: what is added up, the database adds up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django.db import connections, router
from django.db.models import BigIntegerField, Case, F, IntegerField, Max, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from ...databases import FlooredSeconds
from ...models import TopPartition, UsageBucket, UsageSample
from ...usage.reports.coverage import DAY, Period
from ...usage.times import Granularity, aware, stored
from .cells import MINUTE_SECONDS, Width

HOUR_SECONDS: Final = 3_600

#: A period as long as this is read by the index of callers, a shorter one by that of minutes.
LONG: Final = 2 * DAY

#: So many callers are named in a query at most.
MAX_NAMED: Final = 500


class Source(NamedTuple):
    """Which requests are read: those of one rule in a period, without those of another.

    is_shared: all callers share one counter.
    """

    rule: str
    period: Period
    is_shared: bool = False
    without: Period | None = None


class CallerCells(NamedTuple):
    """A sampled caller in one tier. peak: the most requests in one cell. who: its digest."""

    tier: str
    who: str
    requests: int
    peak: int


class Beyond(NamedTuple):
    """Requests beyond thresholds, of all sampled callers of a tier in one cell. at: seconds since the Unix epoch."""

    tier: str
    at: int
    requests: tuple[int, ...]


class CallerBeyond(NamedTuple):
    """Requests of one caller beyond thresholds. first_at: the cell in which the last of them was first exceeded."""

    tier: str
    who: str
    requests: tuple[int, ...]
    first_at: int | None


def callers(source: Source, width: Width) -> Iterator[CallerCells]:
    """Yield the callers of the period, each with its requests in all, and in its busiest cell. One query."""
    sql, params = _compiled(_cells(source, width))
    text = f"SELECT tier, who, SUM(n), MAX(n) FROM ({sql}) cells GROUP BY who, tier"
    for tier, who, requests, peak in _rows(text, params):
        yield CallerCells(tier, who, int(requests), int(peak))


def beyond(
    source: Source, width: Width, thresholds: Sequence[Mapping[str, int]], only: Sequence[str] | None = None
) -> list[Beyond]:
    """Return the requests beyond each of these thresholds, by tier and cell; minutes by the hour. One query.

    thresholds: each by tier; a tier that one lacks has no such threshold. only: the callers who exceed any of them;
    `None` = all are looked through.
    """
    if not any(thresholds):
        return []
    rows = _cells(source, width, HOUR_SECONDS)
    if only is not None and len(only) <= MAX_NAMED and not source.is_shared:
        rows = rows.filter(who__in=list(only))
    sql, params = _compiled(rows)
    sums, values = _excesses(thresholds)
    text = f"SELECT tier, at, {sums} FROM ({sql}) cells WHERE {_exceeded(thresholds)} GROUP BY tier, at"
    found = _rows(text, [*values, *params, *_exceeded_values(thresholds)])
    return [Beyond(tier, int(at), tuple(map(int, requests))) for tier, at, *requests in found]


def callers_beyond(
    source: Source, width: Width, thresholds: Sequence[Mapping[str, int]], who: Sequence[str]
) -> list[CallerBeyond]:
    """Return the requests of these callers beyond each of these thresholds. One query."""
    if not who or source.is_shared:
        return []
    sql, params = _compiled(_cells(source, width, MINUTE_SECONDS).filter(who__in=list(who)[:MAX_NAMED]))
    sums, values = _excesses(thresholds)
    last, last_values = _case(thresholds[-1])
    text = f"SELECT tier, who, {sums}, MIN(CASE WHEN n > {last} THEN at END) FROM ({sql}) cells GROUP BY tier, who"
    found = _rows(text, [*values, *last_values, *params])
    return [
        CallerBeyond(tier, of, tuple(map(int, requests)), None if first is None else int(first))
        for tier, of, *requests, first in found
    ]


def largest(source: Source) -> int | None:
    """Return the most requests of any caller in one hour, sampled or not; `None` = not known. One query."""
    rows = TopPartition.objects.filter(_within(source, "start"), rule_slug=source.rule, granularity=Granularity.HOUR)
    found: int | None = rows.aggregate(most=Max(F("allowed") + F("denied")))["most"]
    return found


def moment_of(seconds: int) -> datetime:
    """Return the moment of `at`, in UTC."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if timezone.is_aware(timezone.now()) else aware(moment.replace(tzinfo=None))


def moment_at(seconds: int | None) -> datetime | None:
    """Return the moment of `at`, if there is one."""
    return None if seconds is None else moment_of(seconds)


def _cells(source: Source, width: Width, narrowest: int = 0) -> QuerySet[Any, Any]:
    """Return rows of tier, who, n, and `at` unless it is not needed.

    narrowest: what `at` is rounded down to where a cell is a minute; 0 = it is not needed there.
    """
    rows = _shared_minutes(source) if source.is_shared else _sampled_minutes(source)
    if width.seconds <= MINUTE_SECONDS and not width.calendar:
        cells: QuerySet[Any, Any] = rows.values("tier", "who", n=F("requests"))
        if narrowest:
            cells = cells.annotate(at=FlooredSeconds("moment", narrowest))
        return cells
    grouped: QuerySet[Any, Any] = rows.values("who", "tier", at=_start_of_cell(source.period, width))
    summed: QuerySet[Any, Any] = grouped.annotate(n=Sum("requests")).order_by()
    return summed


def _sampled_minutes(source: Source) -> QuerySet[Any, Any]:
    rows: QuerySet[Any, Any] = UsageSample.objects.filter(rule_slug=source.rule).order_by()
    # An expression instead of the column keeps databases from the index of minutes, by which they would have to sort.
    by_caller = source.period.end - source.period.start >= LONG
    rows = rows.annotate(taken=Coalesce("minute", "minute") if by_caller else F("minute"))
    rows = rows.filter(_within(source, "taken"))
    named: QuerySet[Any, Any] = rows.values(
        tier=F("tier_slug"), who=F("partition_hash"), requests=F("count"), moment=F("minute")
    )
    return named


def _shared_minutes(source: Source) -> QuerySet[Any, Any]:
    """Return the minutes of a rule whose callers share one counter: they are counted, not sampled."""
    rows: QuerySet[Any, Any] = UsageBucket.objects.filter(
        _within(source, "start"), rule_slug=source.rule, granularity=Granularity.MINUTE
    ).order_by()
    by_minute: QuerySet[Any, Any] = rows.values(tier=Value(""), who=Value(""), moment=F("start"))
    summed: QuerySet[Any, Any] = by_minute.annotate(requests=Sum(F("allowed") + F("denied") + F("shadow_denied")))
    return summed


def _within(source: Source, column: str) -> Q:
    """Return the condition that a moment lies in the period of the source."""
    start, end = map(stored, source.period)
    found = Q(**{f"{column}__gte": start, f"{column}__lt": end})
    if source.without is not None:
        start, end = map(stored, source.without)
        found &= Q(**{f"{column}__lt": start}) | Q(**{f"{column}__gte": end})
    return found


def _start_of_cell(period: Period, width: Width) -> Any:
    if not width.calendar:
        return FlooredSeconds("moment", width.seconds)
    starts = width.starts(int(period.start.timestamp()), int(period.end.timestamp()))
    latest_first = [When(moment__gte=stored(datetime.fromtimestamp(each, UTC)), then=each) for each in reversed(starts)]
    return Case(*latest_first, default=starts[0], output_field=IntegerField())


def _excesses(thresholds: Sequence[Mapping[str, int]]) -> tuple[str, list[Any]]:
    """Return the sums of what is beyond each threshold, as columns with their values."""
    columns, values = list[str](), list[Any]()
    for each in thresholds:
        case, of_case = _case(each)
        columns.append(f"COALESCE(SUM(CASE WHEN n > {case} THEN n - {case} ELSE 0 END), 0)")
        values += [*of_case, *of_case]
    return ", ".join(columns), values


def _case(threshold: Mapping[str, int]) -> tuple[str, list[Any]]:
    """Return the threshold of a row's tier; NULL, which nothing exceeds, for a tier that has none."""
    if not threshold:
        return "NULL", []
    number = BigIntegerField().cast_db_type(connections[_database()])  # a server that binds values takes them for text
    whens = " ".join(f"WHEN %s THEN CAST(%s AS {number})" for _ in threshold)
    return f"CASE tier {whens} END", [value for pair in threshold.items() for value in pair]


def _exceeded(thresholds: Sequence[Mapping[str, int]]) -> str:
    return f"n > {_case(_lowest(thresholds))[0]}"


def _exceeded_values(thresholds: Sequence[Mapping[str, int]]) -> list[Any]:
    return _case(_lowest(thresholds))[1]


def _lowest(thresholds: Iterable[Mapping[str, int]]) -> dict[str, int]:
    lowest: dict[str, int] = {}
    for each in thresholds:
        for tier, threshold in each.items():
            lowest[tier] = min(threshold, lowest.get(tier, threshold))
    return lowest


def _compiled(rows: QuerySet[Any, Any]) -> tuple[str, list[Any]]:
    sql, params = rows.query.get_compiler(_database()).as_sql()
    return sql, list(params)


def _rows(sql: str, params: Sequence[Any]) -> Iterator[Any]:
    with connections[_database()].cursor() as cursor:
        cursor.execute(sql, params)
        while some := cursor.fetchmany(2_000):
            yield from some


def _database() -> str:
    return router.db_for_read(UsageSample)
