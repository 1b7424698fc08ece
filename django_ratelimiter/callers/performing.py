"""Acts as they are performed: with a permission, a reason and a number that is good for one time, and in the log."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.contrib.contenttypes.models import ContentType
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import F, Q
from django.utils.translation import gettext as _

from ..exceptions import EngineUnavailable
from ..models import RuleSetState
from ..rules.stored import storage
from .acts import Act, ActRefused, Done, Outcome
from .caller import Caller

#: Seconds for which the form of a page can be sent.
TOKEN_SECONDS: Final = 86_400

#: Characters of a reason.
MAX_REASON: Final = 200

#: An entry of the log that ends with the mark of its act. What follows the number: nothing = done, and found in force.
_MARKED: Final = re.compile(r"(.*) \[[a-z]+ ([^\s\]]+)( begun| unsure)?\]", re.DOTALL)

_SALT: Final = "django_ratelimiter.callers"


class LogLine(NamedTuple):
    """What an operator did for a caller. number: of the act; "" = it was not finished."""

    at: datetime
    operator: str
    text: str
    number: str


def new_token(operator: Any, caller: Caller) -> str:
    """Return a token for one act of this operator on this caller."""
    return signing.dumps([str(operator.pk), caller.digest, secrets.token_urlsafe(9)], salt=_SALT)


def read_token(token: str, operator: Any, caller: Caller) -> str:
    """Return the number of the act that a token is for. Raises ActRefused for one that was not made for this."""
    try:
        user, digest, number = signing.loads(token, salt=_SALT, max_age=TOKEN_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        user = digest = number = ""
    if (user, digest) != (str(operator.pk), caller.digest) or not number:
        raise ActRefused(_("This form is too old, or was made for somebody else. Try again."))
    return str(number)


def perform(operator: Any, caller: Caller, act: Act, reason: str, number: str) -> Outcome:
    """Do an act once, log it and check it. number: of the act; one that was done already changes nothing.

    Raises PermissionDenied, ActRefused and ValidationError: then nothing was done. Raises EngineUnavailable where Redis
    gave no answer; it may have done a part, so the attempt is logged.
    """
    if not operator.has_perm(act.permission):
        raise PermissionDenied
    reason = reason.strip()
    if not reason:
        raise ActRefused(_("Enter a reason. It is written to the log."))
    if len(reason) > MAX_REASON or "\0" in reason:
        raise ActRefused(_("The reason must have %(count)d characters at most.") % {"count": MAX_REASON})
    mark = _mark(act, number)
    with transaction.atomic(using=storage.primary()):
        # A write, so that of two who send the same form the second waits, on every database.
        storage.state().update(number=F("number"))
        earlier = _earlier(operator, caller, act, number)
        if earlier is not None:
            return earlier
        if act.writes_rows:
            done = act.do(caller, operator, reason)
            _log_row(operator, done, reason)
        else:
            done = Done(_("Started. The result is not known."))
        entry = _log(operator, caller, done, reason, mark if act.writes_rows else _mark(act, f"{number} begun"))
    if not act.writes_rows:  # up to hundreds of calls of the engine: nobody who saves a rule is to wait for them
        done = _do_as_logged(act, caller, operator, reason, entry, mark)
    outcome = act.check(caller, done)
    if not outcome.took:  # whoever sends it once more is to be told
        _note(entry, f"{_with_reason(done, reason)} {_mark(act, f'{number} unsure')}")
    return outcome


def _do_as_logged(act: Act, caller: Caller, operator: Any, reason: str, entry: Any, mark: str) -> Done:
    """Do an act whose beginning is in the log, and log its end. One that was refused leaves no entry."""
    try:
        done = act.do(caller, operator, reason)
    except EngineUnavailable:
        _note(entry, _with_reason(Done(_("Tried, without an answer from Redis.")), reason))
        raise
    except Exception:
        entry.delete()
        raise
    _note(entry, f"{_with_reason(done, reason)} {mark}")
    return done


def _note(entry: Any, message: str) -> None:
    entry.change_message = message
    entry.save(update_fields=["change_message"])


def log_of(caller: Caller, most: int = 10) -> list[LogLine]:
    """Return what was done for this caller lately, the latest first."""
    rows = _entries().objects.filter(content_type=_content_type(None), object_id=caller.digest)
    return [_line_of(row) for row in rows.select_related("user").order_by("-action_time", "-pk")[:most]]


def _line_of(entry: Any) -> LogLine:
    found = _MARKED.fullmatch(entry.change_message)
    text, number, state = found.groups() if found else (entry.change_message, "", None)
    return LogLine(entry.action_time, str(entry.user), text, "" if state == " begun" else number)


def _earlier(operator: Any, caller: Caller, act: Act, number: str) -> Outcome | None:
    """Return what became of such an act of this number by this operator on this caller; `None` = there was none."""
    rows = _entries().objects.using(router.db_for_write(_entries())).filter(user_id=operator.pk)
    rows = rows.filter(content_type=_content_type(None), object_id=caller.digest)
    done, begun, unsure = (_mark(act, f"{number}{state}") for state in ("", " begun", " unsure"))
    # One query: between two of them, what was begun may be done, and would be found by neither.
    ends = Q(change_message__endswith=done) | Q(change_message__endswith=begun) | Q(change_message__endswith=unsure)
    message = rows.filter(ends).values_list("change_message", flat=True).first()
    if message is None:
        return None
    if message.endswith(done):
        return Outcome(_("This was already done, so nothing was changed."), took=True, changed=False)
    if message.endswith(unsure):
        text = _("This was already done, so nothing was changed. Afterwards it was not in force: look at the caller.")
        return Outcome(text, took=False, changed=False)
    text = _("This was already started, and the result is not known. Look at the counters, then try again.")
    return Outcome(text, took=False, changed=False)


def _log(operator: Any, caller: Caller, done: Done, reason: str, mark: str) -> Any:
    """Write it about the caller, and return the entry."""
    return _entries().objects.create(
        user_id=operator.pk,
        content_type=_content_type(None),
        object_id=caller.digest,
        object_repr=str(caller)[:200],
        action_flag=2,  # a change
        change_message=f"{_with_reason(done, reason)} {mark}",
    )


def _log_row(operator: Any, done: Done, reason: str) -> None:
    """Write it about the row that was written."""
    row = done.row
    _entries().objects.create(
        user_id=operator.pk,
        content_type=_content_type(row),
        object_id=str(row.pk),
        object_repr=str(row)[:200],
        action_flag=1 if done.is_new else 2,
        change_message=_with_reason(done, reason),
    )


def _with_reason(done: Done, reason: str) -> str:
    return _("%(done)s Reason: %(reason)s") % {"done": done.text, "reason": reason}


def _mark(act: Act, number: str) -> str:
    return f"[{act.kind} {number}]"


def _content_type(row: Any) -> ContentType:
    return ContentType.objects.get_for_model(RuleSetState if row is None else row)


def _entries() -> Any:
    """Return the model of the admin's log; imported here, for the app must be installed."""
    from django.contrib.admin.models import LogEntry

    return LogEntry
