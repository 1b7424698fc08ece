"""Exact usage: every caller of a rule with `exact_usage` in a period."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from django.db.models import F, QuerySet, Sum
from django.utils import timezone

from ...conf import caller_in, settings
from ...engine.base import Alias
from ...models import CallerUsage
from ...values.digests import keyed_digest
from ...values.partitions import EXACT, encode_partition
from ..times import Granularity, aware, buckets, stored
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


def days_of(rows: QuerySet[Any], caller: str, period: Period) -> list[Point]:
    """Return the figures of the caller of an alias by day, in the current time zone."""
    identity, value = caller_in(caller)
    starts = list(buckets(*period, Granularity.DAY, timezone.get_current_timezone()))
    sums = [Figures()] * len(starts)
    for hour, *counts in rows.filter(identity=identity, value=value).values_list("hour", *CallerUsage.COUNTS):
        sums[bisect_right(starts, aware(hour)) - 1] += _figures(*counts)
    return [Point(*each) for each in zip(starts, [*starts[1:], period.end], sums, strict=True)]


def _figures(allowed: int, rejected: int, rejected_by_other: int, units: int) -> Figures:
    return Figures(allowed, rejected, rejected_by_other=rejected_by_other, units=units)
