"""Deletes what is older than RETENTION says, a little at a time, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.db import router, transaction
from django.db.models import QuerySet

from ..conf import settings
from ..models import TopPartition, UsageBucket, UsageSample
from .times import now, stored

#: Rows that one transaction deletes.
BATCH: Final = 2_000


def prune() -> int:
    """Delete old buckets, heaviest partitions and samples; returns how many rows. Safe to be killed, and at once."""
    return sum(_delete(rows) for rows in _old())


def _old() -> Iterator[QuerySet[Any]]:
    database = router.db_for_write(UsageBucket)
    for granularity, days in settings.RETENTION.items():
        if days is None:
            continue
        before = stored(now() - timedelta(days=days))
        for model in (UsageBucket, TopPartition):
            yield model._default_manager.using(database).filter(granularity=granularity, start__lt=before)
        if granularity == UsageBucket.Granularity.MINUTE:
            yield UsageSample.objects.using(database).filter(minute__lt=before)


def _delete(rows: QuerySet[Any]) -> int:
    deleted = BATCH
    total = 0
    while deleted == BATCH:
        with transaction.atomic(using=rows.db):
            # What another one is deleting is left to it.
            some = list(rows.select_for_update(skip_locked=True).order_by("pk").values_list("pk", flat=True)[:BATCH])
            deleted = len(some)
            rows.model._default_manager.using(rows.db).filter(pk__in=some).delete()
        total += deleted
    return total
