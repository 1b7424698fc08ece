"""Moves usage from the engine to SQL, so that every count arrives exactly once.

A closed minute is a batch with a name of its own. In one transaction the name is stored, under a unique constraint,
and the counts are added; only then is the batch dropped. Killed before the commit, a collector has done nothing;
killed after it, the next one finds the name and only drops the batch. Collectors that run at once wait for each
other at that name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db import IntegrityError, InterfaceError, OperationalError, router, transaction
from django.db.models import F
from django.utils import timezone

from ..connection import get_engine
from ..engine.base import UsageCount
from ..exceptions import EngineUnavailable
from ..models import UsageBatch, UsageBucket
from ..rules import cache
from .times import start_of, stored

logger = logging.getLogger("django_ratelimiter")

#: How long the name of a collected batch is kept: longer than the 8 days that the engine keeps the batch itself.
NAMES_KEPT: Final = timedelta(days=9)

SLUG_LENGTH: Final = UsageBucket.rule_slug.field.max_length
FIELDS: Final = ("allowed", "denied", "shadow_denied", "soft_exceeded")


class Collected(NamedTuple):
    """What one collection did.

    batches: how many were added. requests: what they held; a request counts once for each rule that it met.
    failed: batches that could not be added; they wait, the reason is logged.
    """

    batches: int = 0
    requests: int = 0
    failed: int = 0


class _Key(NamedTuple):
    """What the row of a count is found by. Rows are always touched in this order, so that no two deadlock."""

    rule_slug: str
    tier_slug: str
    start: datetime


def collect() -> Collected:
    """Add the counts of all closed minutes to the usage buckets, and publish the rules' version again.

    Safe to be killed, repeated, and run by several at once. Raises EngineUnavailable, or OperationalError, with
    whatever is not yet added left for the next time; RuntimeError inside a transaction of the caller's, whose
    rollback would lose what has been dropped from the engine.
    """
    database = router.db_for_write(UsageBucket)
    with transaction.atomic(using=database, durable=True):
        forgotten = timezone.now() - NAMES_KEPT
        UsageBatch.objects.using(database).filter(collected_at__lt=forgotten).delete()
    _republish()
    engine = get_engine()
    batches = requests = failed = 0
    waiting = list(engine.take_usage())
    postponed = set()
    for batch in waiting:
        try:
            counts = engine.read_usage(batch)
            if batch not in postponed and any(min(count[2:]) < 0 for count in counts):
                postponed.add(batch)
                waiting.append(batch)  # what takes counts back comes after them
                continue
            added = _add_once(database, batch, counts)
            engine.drop_usage(batch)
        except (EngineUnavailable, OperationalError, InterfaceError):
            raise
        except Exception:  # whatever is wrong with this batch must not hold up the others
            logger.exception("Usage batch %s could not be added. It waits; the others go on.", batch)
            failed += 1
        else:
            batches += added
            requests += added * sum(count.allowed + count.denied + count.shadow_denied for count in counts)
    return Collected(batches, requests, failed)


def _republish() -> None:
    try:
        cache.republish()
    except Exception:
        logger.warning("The version of the rules could not be published again.", exc_info=True)


def _add_once(database: str, batch: str, counts: Iterable[UsageCount]) -> bool:
    """Add the counts and the batch's name in one transaction; False if the batch is in the buckets already."""
    try:
        with transaction.atomic(using=database, durable=True):
            UsageBatch.objects.using(database).create(batch_id=batch)
            _add(database, _totals(counts))
    except IntegrityError:
        if UsageBatch.objects.using(database).filter(batch_id=batch).exists():
            return False
        raise
    return True


def _totals(counts: Iterable[UsageCount]) -> dict[_Key, list[int]]:
    """Sums by row: labels that differ only in what cannot be stored share one."""
    totals: dict[_Key, list[int]] = {}
    for count in counts:
        rule, _, tier = count.label.partition("|")
        key = _Key(_slug(rule), _slug(tier), stored(start_of(count.minute)))
        sums = totals.setdefault(key, [0] * len(FIELDS))
        for place, field in enumerate(FIELDS):
            sums[place] += getattr(count, field)
    return totals


def _slug(text: str) -> str:
    """What a label says, as far as a column can hold it: the engine takes labels of any kind."""
    return text.replace("\x00", "")[:SLUG_LENGTH]


def _add(database: str, totals: Mapping[_Key, list[int]]) -> None:
    """First see that every row exists, then add; in this order and in key order two collectors cannot deadlock."""
    rows = UsageBucket.objects.using(database)
    keys = sorted(totals)
    rows.bulk_create([UsageBucket(**key._asdict()) for key in keys], ignore_conflicts=True)
    for key in keys:
        amounts = dict(zip(FIELDS, totals[key], strict=True))
        minutes = rows.filter(granularity=UsageBucket.Granularity.MINUTE, **key._asdict())
        if minutes.update(**{field: F(field) + amount for field, amount in amounts.items()}) != 1:
            raise OperationalError(f"The usage bucket of {key} was deleted while it was added to.")
