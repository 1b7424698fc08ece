"""Forgetting a caller: removes what is stored under its value, and says what stays, and until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from ..backend import get_engine
from ..conf import settings
from ..engine.usage.rejections import FORGOTTEN_US
from ..exceptions import EngineUnavailable
from ..models import TierAssignment, TopCaller, TopPartition, UsageSample
from ..models.people import rows_naming, written
from ..plans import user_pk
from ..rules.formatting import duration
from .caller import Caller
from .counters import Counters
from .reset import counters_now, log_of

#: Maximum number of lines of the admin's log that are counted.
_MAX_LOGGED: Final = 1_000


class Forgotten(NamedTuple):
    """What was removed, and what stays, as lines of text. problem: why Redis did not answer; empty = it did."""

    removed: list[str]
    staying: list[str]
    problem: str


def forget(caller: Caller) -> Forgotten:
    """Remove the caller's rows and counters; only the rows if Redis does not answer. It can be repeated."""
    found = counters_now(caller)
    deleted = Counter[str]()
    for rows in _rows(caller):
        deleted[str(rows.model._meta.verbose_name_plural)] += rows.delete()[0]
    removed = [f"{name}: {count}" for name, count in deleted.items() if count]
    problem = found.problem
    if not problem:
        try:
            removed += _forget_in_redis(caller, found)
        except EngineUnavailable as error:
            problem = str(error)
    return Forgotten(removed, [*_staying(caller, found)], problem)


def _rows(caller: Caller) -> Iterator[QuerySet[Any]]:
    value = {"api_key": caller.api_key, "ip": caller.address}.get(caller.kind, caller.known.get(caller.kind))
    partition = caller.partition(caller.known if caller.kind == "partition" else (caller.kind,))
    yield from rows_naming(caller.kind, value, partition)
    if caller.kind == "api_key" and caller.api_key:
        yield written(TierAssignment).filter(api_key_hash=caller.api_key)
    if caller.kind == "user" and (pk := user_pk(caller.user_id)) is not None:
        yield written(TierAssignment).filter(user=pk)
    for model in (TopPartition, TopCaller):
        yield written(model).filter(partition=caller.digest)
    yield written(UsageSample).filter(partition_hash=caller.digest)


def _forget_in_redis(caller: Caller, found: Counters) -> Iterator[str]:
    used = [each for each in found.own if each.used]
    if used:
        get_engine().reset([each.charge for each in used])
        rules = ", ".join(dict.fromkeys(each.rule.slug for each in used))
        yield _("counters: %(count)d (%(rules)s)") % {"count": len(used), "rules": rules}
    forget_tail = getattr(get_engine(), "forget_tail", None)
    if forget_tail and forget_tail(caller.digest):
        yield _("the name in recent rejections in Redis")


def _staying(caller: Caller, found: Counters) -> Iterator[str]:
    if others := [each.rule for each in found.unread if caller.kind in each.rule.partition_by]:
        windows = [record.limit.window_us for rule in others for limits in rule.limits.values() for record in limits]
        text = _("counters of rules that also count by other values (%(rules)s): %(time)s at most")
        rules = ", ".join(rule.slug for rule in others)
        yield text % {"rules": rules, "time": duration(max(windows, default=0))}
    day, days = duration(FORGOTTEN_US), settings.RETENTION
    yield _("recent rejections in Redis, by digest: %(time)s") % {"time": day}
    text = _(
        "usage by digest, of other values too or not collected yet: %(minute)s days (samples), %(hour)s days (hours)"
    )
    yield text % {each: _("unlimited") if days[each] is None else days[each] for each in ("minute", "hour")}
    if apps.is_installed("django.contrib.admin") and (count := len(log_of(caller, most=_MAX_LOGGED))):
        yield _("lines about this caller in the admin's log, without an end: %(count)d") % {"count": count}
