"""What operators do to a caller: reset its counters, and remove what is stored about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..backend import get_engine
from ..conf import settings
from ..engine.usage.rejections import FORGOTTEN_US
from ..exceptions import EngineUnavailable
from ..models import CallerUsage, RuleSetState, TierAssignment, TopCaller, TopPartition, UsageSample
from ..models.people import rows_naming, written
from ..plans import user_pk
from ..rules import cache
from ..rules.formatting import duration, listed
from ..rules.stored import published
from ..values.partitions import EXACT
from .caller import Caller
from .counters import Counter, Counters, counters_of, read
from .grounds import grounds_of

UNBLOCK: Final = "django_ratelimiter.unblock_caller"

#: Maximum number of resets that are shown.
MAX_SHOWN: Final = 10


class LogLine(NamedTuple):
    """A reset by an operator."""

    at: datetime
    by: str
    text: str


def reset(operator: Any, caller: Caller, names: Collection[str], reason: str) -> tuple[str, bool]:
    """Reset the caller's own counters with these names, or all of them, log it and check it.

    Returns the outcome as text, and whether the check has found no counter that blocks the caller.
    Raises PermissionDenied and ValidationError: then nothing was done. Raises EngineUnavailable if Redis does not
    answer; a part may be done, so the attempt is logged.
    """
    if not operator.has_perm(UNBLOCK):
        raise PermissionDenied
    reason = _checked(reason)
    if problem := published.held().problem:
        raise ValidationError(problem)
    counters = _own_counters(caller, names)
    entry = _log(operator, caller, _with_reason(_("Tried, without an answer from Redis."), reason))
    get_engine().reset([each.charge for each in counters])
    done = ngettext("Reset %(count)d counter: %(rules)s.", "Reset %(count)d counters: %(rules)s.", len(counters))
    done %= {"count": len(counters), "rules": _rules(counters)}
    entry.change_message = _with_reason(done, reason)
    entry.save(update_fields=["change_message"])
    after = read(Counters(counters))
    blocked = [each for each in after.counters if each.blocked]
    if after.problem:
        text = _("%(done)s It could not be checked, because Redis does not answer now.")
    elif blocked:
        text = _("%(done)s Still blocked by: %(rules)s.")
    else:
        text = _("%(done)s Checked: none of them blocks the caller now.")
    return text % {"done": done, "rules": _rules(blocked)}, not (after.problem or blocked)


def counters_now(caller: Caller) -> Counters:
    """Return the caller's counters under the current rules."""
    rules = cache.latest_rules()
    [grounds] = grounds_of([caller], rules)
    return counters_of(caller, rules, grounds.entitlement)


def _own_counters(caller: Caller, names: Collection[str]) -> list[Counter]:
    """Return the caller's own counters with these names; without names, all. Raises ValidationError if one is not."""
    own = counters_now(caller).own
    known = dict.fromkeys(each.name for each in own)
    if not known:
        raise ValidationError(_("No rule in force counts this caller separately."))
    if not known.keys() >= {*names}:
        problem, right = _("There is no such counter of this caller's own."), _("The caller's counters: %s.")
        raise ValidationError(f"{problem} {right % listed(known)}")
    return [each for each in own if each.name in (names or known)]


def log_of(caller: Caller) -> list[LogLine]:
    """Return the latest resets of this caller's counters, the latest first; none without the admin, which logs them."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    latest = _logged(caller).select_related("user").order_by("-action_time", "-pk")[:MAX_SHOWN]
    return [LogLine(row.action_time, str(row.user), row.change_message) for row in latest]


def _checked(reason: str) -> str:
    if not reason.strip():
        raise ValidationError(_("Enter a reason. It is written to the log."))
    return str(TierAssignment._meta.get_field("reason").clean(reason.strip(), None))  # as reasons of rows


def _rules(counters: Collection[Counter]) -> str:
    return listed(dict.fromkeys(each.rule.slug for each in counters))


def _with_reason(done: str, reason: str) -> str:
    return _("%(done)s Reason: %(reason)s") % {"done": done, "reason": reason}


def _log(operator: Any, caller: Caller, message: str) -> Any:
    return apps.get_model("admin", "LogEntry")._default_manager.create(
        user_id=operator.pk,
        content_type=_content_type(),
        object_id=caller.digest,
        object_repr=str(caller)[:200],
        action_flag=2,  # a change
        change_message=message,
    )


def _logged(caller: Caller) -> QuerySet[Any]:
    rows = apps.get_model("admin", "LogEntry")._default_manager
    return rows.filter(content_type=_content_type(), object_id=caller.digest)


def _content_type() -> ContentType:
    return ContentType.objects.get_for_model(RuleSetState)


class Forgotten(NamedTuple):
    """What was removed, and what stays, as lines of text. problem: why Redis did not answer; empty = it did."""

    removed: list[str]
    staying: list[str]
    problem: str


def forget(caller: Caller) -> Forgotten:
    """Remove the caller's rows and counters; only the rows if Redis does not answer. It can be repeated."""
    found = counters_now(caller)
    deleted: dict[str, int] = {}
    for rows in _rows(caller):
        name = str(rows.model._meta.verbose_name_plural)
        deleted[name] = deleted.get(name, 0) + rows.delete()[0]
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
    if caller.kind == "user" and (pk := user_pk(caller.value)) is not None:
        yield written(TierAssignment).filter(user=pk)
    for model in (TopPartition, TopCaller):
        yield written(model).filter(partition=caller.digest)
    yield written(UsageSample).filter(partition_hash=caller.digest)
    yield written(CallerUsage).filter(identity="", value=caller.digest)
    if caller.kind in EXACT and (counted := caller.known.get(caller.kind)) is not None:
        yield written(CallerUsage).filter(identity=caller.kind, value=counted)


def _forget_in_redis(caller: Caller, found: Counters) -> Iterator[str]:
    used = [each for each in found.own if each.used]
    if used:
        get_engine().reset([each.charge for each in used])
        yield _("counters: %(count)d (%(rules)s)") % {"count": len(used), "rules": _rules(used)}
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
    if apps.is_installed("django.contrib.admin") and (count := _logged(caller).count()):
        yield _("lines about this caller in the admin's log, without an end: %(count)d") % {"count": count}
