"""Deletes what is older than RETENTION says, a little at a time, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Final

from django.db import connections, router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ..conf import settings
from ..models import TopPartition, UsageBucket, UsageSample
from .rollup import STEPS
from .times import floor, now, stored

#: Rows that one transaction deletes.
BATCH: Final = 2_000


def prune() -> int:
    """Delete old buckets, heaviest partitions and samples; returns how many rows. Safe to be killed, and at once."""
    return sum(_delete(rows) for rows in _old())


def _old() -> Iterator[QuerySet[Any]]:
    database = router.db_for_write(UsageBucket)
    moment = now()
    for granularity, days in settings.RETENTION.items():
        if days is None:
            continue
        # What still runs stays: a day may have 25 hours.
        running = floor(moment, STEPS[UsageBucket.Granularity(granularity)], timezone.get_default_timezone())
        before = stored(min(moment - timedelta(days=days), running))
        for model in (UsageBucket, TopPartition):
            yield model._default_manager.using(database).filter(granularity=granularity, start__lt=before)
        if granularity == UsageBucket.Granularity.MINUTE:
            yield UsageSample.objects.using(database).filter(minute__lt=before)


def _delete(rows: QuerySet[Any]) -> int:
    deleted = BATCH
    total = 0
    while deleted == BATCH:
        with _together(rows.db):
            # What another one is deleting is left to it.
            some = list(rows.select_for_update(skip_locked=True).order_by().values_list("pk", flat=True)[:BATCH])
            deleted = len(some)
            rows.model._default_manager.using(rows.db).filter(pk__in=some).delete()
        total += deleted
    return total


def _together(database: str) -> AbstractContextManager[object]:
    """A transaction where rows can be locked. SQLite might refuse to write in one that began with reading."""
    locks = connections[database].features.has_select_for_update
    return transaction.atomic(using=database) if locks else nullcontext()
