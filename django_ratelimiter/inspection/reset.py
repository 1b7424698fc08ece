"""Resetting a caller's counters: with a permission and a reason, logged, and with a check of its effect."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..backend import get_engine
from ..models import RuleSetState
from ..models.validation import validate_line
from ..rules import cache
from ..rules.formatting import listed
from ..rules.stored import epochs
from .caller import Caller
from .counters import Counter, Counters, counters_of, read
from .grounds import grounds_of

UNBLOCK: Final = "django_ratelimiter.unblock_caller"

#: Maximum characters of a reason.
MAX_REASON: Final = 200


class Outcome(NamedTuple):
    """The outcome of a reset. took: a check afterwards has found no counter that blocks the caller."""

    text: str
    took: bool


class LogLine(NamedTuple):
    """A reset by an operator."""

    at: datetime
    by: str
    text: str


def reset(operator: Any, caller: Caller, names: Collection[str], reason: str) -> Outcome:
    """Reset the caller's own counters with these names, or all of them, log it and check it.

    Raises PermissionDenied and ValidationError: then nothing was done. Raises EngineUnavailable if Redis does not
    answer; a part may be done, so the attempt is logged.
    """
    if not operator.has_perm(UNBLOCK):
        raise PermissionDenied
    reason = _checked(reason)
    if problem := epochs.held().problem:
        raise ValidationError(problem)
    counters = own_counters(caller, names)
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
    return Outcome(text % {"done": done, "rules": _rules(blocked)}, took=not (after.problem or blocked))


def counters_now(caller: Caller) -> Counters:
    """Return the caller's counters under the current rules."""
    rules = cache.latest_rules()
    return counters_of(caller, rules, grounds_of(caller, rules).entitlement)


def own_counters(caller: Caller, names: Collection[str] = ()) -> list[Counter]:
    """Return the caller's own counters with these names; without names, all. Raises ValidationError if one is not."""
    own = counters_now(caller).own
    known = dict.fromkeys(each.name for each in own)
    if not known:
        raise ValidationError(_("No rule in force counts this caller separately."))
    if not known.keys() >= {*names}:
        problem, right = _("There is no such counter of this caller's own."), _("The caller's counters: %s.")
        raise ValidationError(f"{problem} {right % listed(known)}")
    return [each for each in own if each.name in (names or known)]


def log_of(caller: Caller, most: int = 10) -> list[LogLine]:
    """Return the latest resets of this caller's counters, the latest first."""
    rows = _entries().objects.filter(content_type=_content_type(), object_id=caller.digest)
    latest = rows.select_related("user").order_by("-action_time", "-pk")[:most]
    return [LogLine(row.action_time, str(row.user), row.change_message) for row in latest]


def _checked(reason: str) -> str:
    reason = reason.strip()
    if not reason:
        raise ValidationError(_("Enter a reason. It is written to the log."))
    if len(reason) > MAX_REASON:
        raise ValidationError(_("The reason must have %(count)d characters at most.") % {"count": MAX_REASON})
    validate_line(reason)
    return reason


def _rules(counters: Collection[Counter]) -> str:
    return listed(dict.fromkeys(each.rule.slug for each in counters))


def _with_reason(done: str, reason: str) -> str:
    return _("%(done)s Reason: %(reason)s") % {"done": done, "reason": reason}


def _log(operator: Any, caller: Caller, message: str) -> Any:
    return _entries().objects.create(
        user_id=operator.pk,
        content_type=_content_type(),
        object_id=caller.digest,
        object_repr=str(caller)[:200],
        action_flag=2,  # a change
        change_message=message,
    )


def _content_type() -> ContentType:
    return ContentType.objects.get_for_model(RuleSetState)


def _entries() -> Any:
    """Return the model of the admin's log; imported here, because the app must be installed."""
    from django.contrib.admin.models import LogEntry

    return LogEntry
