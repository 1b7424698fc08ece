"""Deletes rows that are older than RETENTION, a few at a time, so that nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

from django.db import router
from django.db.models import Q, QuerySet
from django.utils import timezone

from ...conf import settings
from ...models import CallerUsage, RuleSetVersion, TopCaller, TopPartition, UsageBucket, UsageSample, UsageTotal
from ...values.digests import ADDRESS_MARK
from ...values.partitions import EXACT
from ..times import Granularity, floor, now, stored

#: Rows that are deleted or changed at once.
BATCH: Final = 2_000

#: This many of the latest versions of the rule set are kept, whatever their age; the first of them is current.
MIN_VERSIONS: Final = 50
#: Maximum number of versions that are kept unless RETENTION is None: each contains the whole rule set.
MAX_VERSIONS: Final = 1_000

#: Rows of which it is read each minute whether they have addresses that are to be cut: those of an hour of 100 rules.
MAX_LATEST: Final = 10_000


def prune() -> int:
    """Delete old usage and old versions of the rule set, and cut old addresses from usage.

    Return the number of deleted rows. Safe to kill, and to run twice.
    """
    deleted = sum(_in_batches(rows, QuerySet.delete) for old in (_old_usage(), _old_versions()) for rows in old)
    for rows in _old_addresses():
        _in_batches(rows, lambda some: some.update(tail=""))
    return deleted


def _old_addresses() -> Iterator[QuerySet[Any]]:
    """Yield usage by callers whose addresses are not to be read any more. The rows stay.

    No index knows which rows have addresses, so each minute only the latest are read, and all if one of these has.
    """
    days = settings.RETENTION["addresses"]
    if days is None:
        return
    before = stored(now() - timedelta(days=days))
    tops = [(model, "start", {"granularity": each}) for model in (TopPartition, TopCaller) for each in ("hour", "day")]
    for model, at, of in [*tops, (UsageSample, "minute", {})]:
        rows = model._default_manager.using(router.db_for_write(UsageBucket)).filter(**of, **{f"{at}__lt": before})
        latest = rows.order_by(f"-{at}").values_list("tail", flat=True)[:MAX_LATEST]
        if any(tail.startswith(ADDRESS_MARK) for tail in latest):
            yield rows.filter(tail__startswith=ADDRESS_MARK)


def _old_usage() -> Iterator[QuerySet[Any]]:
    database = router.db_for_write(UsageBucket)
    moment = now()
    for granularity in Granularity:
        days = settings.RETENTION[granularity]
        if days is None:
            continue
        # The current bucket stays: a day may have 25 hours.
        running = floor(moment, granularity, timezone.get_default_timezone())
        before = stored(min(moment - timedelta(days=days), running))
        for model in (UsageBucket, UsageTotal, TopPartition, TopCaller):
            yield model._default_manager.using(database).filter(granularity=granularity, start__lt=before)
        if granularity is Granularity.MINUTE:
            yield UsageSample.objects.using(database).filter(minute__lt=before)
    for identity in ("", *EXACT):
        of = ("callers", "addresses") if identity == "ip" else ("callers",)
        if kept := [days for days in map(settings.RETENTION.get, of) if days is not None]:
            before = stored(moment - timedelta(days=min(kept)))
            rows = CallerUsage.objects.using(database).filter(identity=identity)
            slugs = rows.order_by("rule_slug").values_list("rule_slug", flat=True)
            rule = slugs.first()
            while rule is not None:  # one by one, in the order of their index
                yield rows.filter(rule_slug=rule, hour__lt=before)
                rule = slugs.filter(rule_slug__gt=rule).first()


def _old_versions() -> Iterator[QuerySet[Any]]:
    days = settings.RETENTION["version"]
    if days is None:
        return
    versions = RuleSetVersion.objects.using(router.db_for_write(RuleSetVersion))
    before = timezone.now() - timedelta(days=days)
    for limit, aged in ((MIN_VERSIONS, Q(created_at__lt=before)), (MAX_VERSIONS, Q())):
        last = versions.order_by("-epoch", "-number").values_list("epoch", "number")[limit - 1 : limit].first()
        if last is not None:
            epoch, number = last
            yield versions.filter(aged, Q(epoch__lt=epoch) | Q(epoch=epoch, number__lt=number))


def _in_batches(rows: QuerySet[Any], act: Callable[[QuerySet[Any]], object]) -> int:
    """Delete or change these rows, which match no more afterwards. Return their number."""
    total = 0
    while True:
        some = list(rows.order_by().values_list("pk", flat=True)[:BATCH])
        act(rows.model._default_manager.using(rows.db).filter(pk__in=some))
        total += len(some)
        if len(some) < BATCH:
            return total
