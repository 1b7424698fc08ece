"""Exact usage: every caller of a rule with `exact_usage` in a period."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final

from django.db.models import Case, F, IntegerField, Q, QuerySet, Sum, When
from django.utils import timezone

from ...conf import caller_in, settings
from ...engine.base import Alias
from ...models import CallerUsage
from ...values.digests import keyed_digest
from ...values.partitions import EXACT, encode_partition
from ..times import Granularity, buckets, stored
from .coverage import Period
from .totals import Figures, Point

_SUMS: Final = {f"sum_{name}": Sum(name) for name in CallerUsage.COUNTS}
_REQUESTS: Final = F("sum_allowed") + F("sum_rejected") + F("sum_rejected_by_other")

#: The orders of callers by name.
ORDERS: Final = {name: f"-sum_{name}" for name in CallerUsage.COUNTS} | {"requests": "-requests", "caller": "value"}


def rows_of(rule: str, period: Period) -> QuerySet[Any]:
    """Return the exact usage of a rule in the hours that begin in a period."""
    within = {"hour__gte": stored(period.start), "hour__lt": stored(period.end)}
    return CallerUsage.objects.filter(identity__in=("", *EXACT), rule_slug=rule, **within)


def sums_of(rows: QuerySet[Any], order: str, most: int | None = None) -> list[tuple[Alias, str, str, Figures]]:
    """Return the sums of these rows by caller, at most `most`: its alias, with a tail whatever REVEAL is, identity,
    value, and figures. order: one of `ORDERS`.
    """
    found, sums = [], rows.values_list("identity", "value").annotate(**_SUMS, requests=_REQUESTS)
    for identity, value, *counts, _requests in sums.order_by(ORDERS[order], "identity", "value")[:most]:
        caller = Alias.of(value, "")
        if identity:
            caller = keyed_digest(settings.HASH_KEY, encode_partition([(identity, value)]), (identity,))
        found.append((caller, identity, value, _figures(*counts)))
    return found


def together(rows: QuerySet[Any]) -> Figures:
    """Return the sum of these rows."""
    return _figures(*(int(each or 0) for each in rows.aggregate(**_SUMS).values()))


def days_of(rule: str, caller: str, period: Period) -> list[Point]:
    """Return the figures of the caller of an alias by day, in the current time zone."""
    starts = list(buckets(*period, Granularity.DAY, timezone.get_current_timezone()))
    sums = {place: figures for _rule, place, figures in by_day(rows_of(rule, period), {rule: caller}, starts)}
    ends = [*starts[1:], period.end]
    return [Point(*each, sums.get(place, Figures())) for place, each in enumerate(zip(starts, ends, strict=True))]


def by_day(
    rows: QuerySet[Any], digests: Mapping[str, str], starts: Sequence[datetime]
) -> Iterator[tuple[str, int, Figures]]:
    """Return the figures of one caller in these rows: the rule, the day's place among these starts, the sums.

    digests: of the caller, by rule.
    """
    callers = {rule: caller_in(digest) for rule, digest in digests.items()}
    known = [Q(identity=identity, value=value) for identity, value in set(callers.values())]
    found = rows.filter(reduce(or_, known, Q(pk__in=[])), rule_slug__in=callers).order_by()
    # Days are compared with their starts: MySQL and MariaDB have no time zones unless an operator has loaded them.
    latest_first = [When(hour__gte=stored(each), then=place) for place, each in enumerate(starts)][::-1]
    day = Case(*latest_first, output_field=IntegerField())
    days = found.values_list("rule_slug", "identity", "value", day).annotate(**_SUMS)
    for rule, identity, value, place, *counts in days:
        if callers[rule] == (identity, value):
            yield rule, place, _figures(*counts)


def _figures(allowed: int, rejected: int, rejected_by_other: int, units: int) -> Figures:
    return Figures(allowed, rejected, rejected_by_other=rejected_by_other, units=units)
