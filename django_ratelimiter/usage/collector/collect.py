"""Moves usage from the engine to SQL, so that every count arrives exactly once.

A closed minute is a batch with its own name. In one transaction the name is stored, under a unique constraint,
and the counts are added; only then is the batch deleted. If a collector is killed before the commit, nothing was done;
if it is killed after it, the next one finds the name and only deletes the batch. Collectors that run at the same time
wait for each other at that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from operator import add as add_up
from typing import Final, NamedTuple

from django.db import IntegrityError, InterfaceError, OperationalError, router, transaction
from django.utils import timezone

from ...backend import get_engine
from ...conf import caller_in
from ...databases import limit_wait
from ...engine.base import UsageCount
from ...engine.usage import CALLER
from ...exceptions import EngineUnavailable, WrongRedis
from ...logs import logger
from ...models import CallerUsage, UsageBatch, UsageBucket, UsageTotal
from ...rules import cache
from ...rules.stored import published
from ...values.digests import alias_of
from ..times import start_of, starts_of, stored
from .alerts import Thresholds, lag, send_alerts
from .partitions import collect_partitions
from .prune import prune
from .upsert import BucketKey, CallerKey, TotalKey, add, slug

#: How long the name of a collected batch is stored: longer than the 8 days that the engine keeps the batch itself.
BATCH_NAME_LIFETIME: Final = timedelta(days=9)

#: Called with the number of collected batches, and the number of all.
Progress = Callable[[int, int], None]


class Collected(NamedTuple):
    """The result of one collection.

    batches: how many were added. requests: in them; a request counts once for each rule that matched it.
    failed: batches that could not be added; they stay in the engine, and the reason is logged.
    """

    batches: int = 0
    requests: int = 0
    failed: int = 0


def run(thresholds: Thresholds, progress: Progress = lambda done, waiting: None) -> tuple[Collected, int]:
    """Collect all closed minutes, send alerts, and delete rows that are older than RETENTION.

    Return what was collected, and how many rows were deleted. Raises as `collect` does. Raises WrongRedis before
    anything is read if the engine holds another database's rules, and at the end if it held none, as after a flush.
    """
    held = published.held()
    if held not in (published.Held.OURS, published.Held.NONE):
        raise WrongRedis(held.problem)
    lag_before = lag()
    collected = collect(progress)
    send_alerts(lag_before, thresholds)
    deleted = prune()
    if held is published.Held.NONE:
        done = "" if cache.last_publish_failed() else " It holds the latest version now."
        raise WrongRedis(f"{held.problem}{done}")
    return collected, deleted


def collect(progress: Progress = lambda done, waiting: None) -> Collected:
    """Add the counts of all closed minutes to the usage buckets, and publish the rules' version again.

    Statistics of partitions are stored, too. progress: called before each batch (one is read at a
    time, so memory does not grow), and while partitions are stored.
    It can safely be killed, repeated, and run several times at once. Raises EngineUnavailable or OperationalError; then
    what is not yet added stays for the next time. Raises RuntimeError inside the caller's transaction, whose
    rollback would lose what was deleted from the engine.
    """
    database = router.db_for_write(UsageBucket)
    with transaction.atomic(using=database, durable=True):  # raises inside another transaction
        pass
    _republish()
    engine = get_engine()
    batches = requests = failed = 0
    waiting = list(engine.take_usage())
    for done, batch in enumerate(waiting):
        progress(done, len(waiting))
        try:
            counts = engine.read_usage(batch)
            totals = engine.read_requests(batch) if hasattr(engine, "read_requests") else []  # some engines have none
            added = _add_once(database, batch, counts, totals)
            engine.drop_usage(batch)
        except (EngineUnavailable, OperationalError, InterfaceError):
            raise
        except Exception:  # an error in this batch must not stop the others
            logger.exception(
                "Usage batch %s could not be added. It stays in Redis; the other batches are added.", batch
            )
            failed += 1
        else:
            batches += added
            requests += added * sum(count.requests for count in counts)
    try:
        collect_partitions(engine, database, lambda: progress(len(waiting), len(waiting)))
    except (OperationalError, InterfaceError):
        raise
    except EngineUnavailable as error:  # some shards were reached, or it would have been raised before
        logger.warning("The figures of partitions cannot be collected now: %s", error)
    except Exception:  # the counts are stored; these figures are estimates, and can wait
        logger.exception("The figures of partitions could not be collected. They stay in Redis.")
    # Last, when no batch waits that needs its name: a clock may be wrong by days.
    UsageBatch.objects.using(database).filter(collected_at__lt=timezone.now() - BATCH_NAME_LIFETIME).delete()
    return Collected(batches, requests, failed)


def _republish() -> None:
    try:
        cache.republish(anew=True)  # if the engine holds another database's, it is not collected
    except Exception:
        logger.warning("The version of the rules could not be published again.", exc_info=True)


def _add_once(database: str, batch: str, counts: Iterable[UsageCount], totals: Iterable[UsageCount] = ()) -> bool:
    """Add counts, totals and the batch's name in one transaction; False if the batch was added before."""
    try:
        with transaction.atomic(using=database, durable=True):
            limit_wait(database)
            UsageBatch.objects.using(database).create(batch_id=batch)
            add(database, _totals(counts))
            add(database, _sums_of_callers(counts), CallerUsage)
            for total in totals:
                starts, amounts = starts_of(total.minute), [getattr(total, field) for field in UsageTotal.COUNTS]
                add(database, {TotalKey(*each): amounts for each in starts.items()}, UsageTotal)
    except IntegrityError:
        if UsageBatch.objects.using(database).filter(batch_id=batch).exists():
            return False
        raise
    return True


def _totals(counts: Iterable[UsageCount]) -> dict[BucketKey, list[int]]:
    """Return sums by row: labels that are equal after removing what cannot be stored share one row."""
    totals: dict[BucketKey, list[int]] = {}
    for count in counts:
        rule, _, tier = count.label.partition(CALLER)[0].partition("|")
        for granularity, start in starts_of(count.minute).items():
            key = BucketKey(granularity, slug(rule), slug(tier), start)
            sums = totals.setdefault(key, [0] * len(UsageBucket.COUNTS))
            for place, field in enumerate(UsageBucket.COUNTS):
                sums[place] += getattr(count, field)
    return totals


def _sums_of_callers(counts: Iterable[UsageCount]) -> dict[CallerKey, list[int]]:
    """Return sums by row of exact usage. For a rule in shadow, rejected means would have been rejected."""
    sums: dict[CallerKey, list[int]] = {}
    for count in counts:
        label, is_exact, caller = count.label.partition(CALLER)
        if is_exact:
            rule, hour = slug(label.partition("|")[0]), stored(start_of(count.minute // 60 * 60))
            identity, value = caller_in(alias_of(caller))
            of = sums.setdefault(CallerKey(identity, slug(value, 200), rule, hour), [0] * len(CallerUsage.COUNTS))
            rejected = count.rejected + count.shadow_rejected
            of[:] = map(add_up, of, (count.allowed, rejected, count.rejected_by_other, count.units))
    return sums
