"""Performing acts: with a permission, a reason and a number that works only once, and with a log entry."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.contrib.contenttypes.models import ContentType
from django.core import signing
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import router, transaction
from django.db.models import F, Q
from django.utils.translation import gettext as _

from ..exceptions import EngineUnavailable
from ..models import RuleSetState
from ..models.validation import validate_line
from ..rules.stored import storage
from .acts import ACTS, Act, Done, InvalidAct, Outcome
from .caller import Caller
from .explanation import may_view

#: Seconds for which the form of a page is valid.
TOKEN_SECONDS: Final = 86_400

#: Maximum characters of a reason.
MAX_REASON: Final = 200

#: A log entry that ends with the mark of its act. After the number: nothing = done, and confirmed.
_MARKED: Final = re.compile(r"(.*) \[[a-z-]+ ([^\s\]]+)( begun| unsure)?\]", re.DOTALL)

_SALT: Final = "django_ratelimiter.callers"


class LogLine(NamedTuple):
    """An act of an operator for a caller."""

    at: datetime
    by: str
    text: str
    number: str  # of the act; empty = it was not finished


def new_token(operator: Any, caller: Caller) -> str:
    """Return a token for one act of this operator for this caller."""
    about = caller.digest, caller.api_key  # keys of one owner have the same digest
    return signing.dumps([str(operator.pk), *about, secrets.token_urlsafe(9)], salt=_SALT)


def read_token(token: str, operator: Any, caller: Caller) -> str:
    """Return the act's number in a token. Raises InvalidAct for a token of another operator or caller."""
    try:
        *about, number = signing.loads(token, salt=_SALT, max_age=TOKEN_SECONDS)
    except (signing.BadSignature, ValueError, TypeError):
        about, number = [], ""
    if about != [str(operator.pk), caller.digest, caller.api_key] or not number:
        raise InvalidAct(_("This form is too old, or was made for somebody else. Try again."))
    return str(number)


def perform(operator: Any, caller: Caller, act: Act, reason: str, number: str) -> Outcome:
    """Perform an act once, log it and check it. number: of the act; if it was done already, nothing changes.

    Raises PermissionDenied, InvalidAct and ValidationError: then nothing was done. Raises EngineUnavailable if Redis
    does not answer; a part may be done, so the attempt is logged.
    """
    if not operator.has_perm(act.permission):
        raise PermissionDenied
    reason = reason.strip()
    if not reason:
        raise InvalidAct(_("Enter a reason. It is written to the log."))
    if len(reason) > MAX_REASON:
        raise InvalidAct(_("The reason must have %(count)d characters at most.") % {"count": MAX_REASON})
    try:
        validate_line(reason)
    except ValidationError as error:
        raise InvalidAct(" ".join(error.messages)) from error
    mark = _mark(act, number)
    with transaction.atomic(using=storage.primary()):
        # A write: if two send the same form, the second waits, on every database.
        storage.state().update(number=F("number"))
        earlier = _earlier(operator, caller, act, number)
        if earlier is not None:
            return earlier
        if act.writes:
            done = act.do(caller, operator, reason)
            row, text = done.row, _with_reason(done, reason)
            _log(operator, row, str(row.pk), str(row), text, is_new=done.is_new)
        else:
            done = Done(_("Started. The result is not known."))
        text = f"{_with_reason(done, reason)} {mark if act.writes else _mark(act, f'{number} begun')}"
        entry = _log(operator, None, caller.digest, str(caller), text)
    if not act.writes:  # up to hundreds of calls of the engine: saving a rule must not wait for them
        done = _do_as_logged(act, caller, operator, reason, entry, mark)
    outcome = act.check(caller, done)
    if not outcome.took:  # the next attempt must return this outcome
        _note(entry, f"{_with_reason(done, reason)} {_mark(act, f'{number} unsure')}")
    return outcome


def _do_as_logged(act: Act, caller: Caller, operator: Any, reason: str, entry: Any, mark: str) -> Done:
    """Perform an act whose start is in the log, and log its end. If it is rejected, the entry is deleted."""
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


def log_of(caller: Caller, reader: Any = None, most: int = 10) -> list[LogLine]:
    """Return the latest acts for this caller that this user may see, the latest first; `None` = may see everything.

    Only who may view the rows that an act writes sees such acts of others.
    """
    rows = _entries().objects.filter(content_type=_content_type(None), object_id=caller.digest)
    for act in (act for act in ACTS.values() if act.writes and not may_view(reader, act.writes)):
        rows = rows.exclude(~Q(user_id=reader.pk), change_message__contains=f" [{act.kind} ")
    return [_line_of(row) for row in rows.select_related("user").order_by("-action_time", "-pk")[:most]]


def _line_of(entry: Any) -> LogLine:
    found = _MARKED.fullmatch(entry.change_message)
    text, number, state = found.groups() if found else (entry.change_message, "", None)
    return LogLine(entry.action_time, str(entry.user), text, "" if state == " begun" else number)


def _earlier(operator: Any, caller: Caller, act: Act, number: str) -> Outcome | None:
    """Return the outcome of this operator's earlier act with this number on this caller; `None` = there was none."""
    rows = _entries().objects.using(router.db_for_write(_entries())).filter(user_id=operator.pk)
    rows = rows.filter(content_type=_content_type(None), object_id=caller.digest)
    done, begun, unsure = (_mark(act, f"{number}{state}") for state in ("", " begun", " unsure"))
    # One query: between two, an act that has begun may be finished, and neither would find it.
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


def _log(operator: Any, row: Any, key: str, name: str, message: str, *, is_new: bool = False) -> Any:
    """Write a log entry about this row, and return it. row: `None` = about the caller with this key."""
    return _entries().objects.create(
        user_id=operator.pk,
        content_type=_content_type(row),
        object_id=key,
        object_repr=name[:200],
        action_flag=1 if is_new else 2,
        change_message=message,
    )


def _with_reason(done: Done, reason: str) -> str:
    return _("%(done)s Reason: %(reason)s") % {"done": done.text, "reason": reason}


def _mark(act: Act, number: str) -> str:
    return f"[{act.kind} {number}]"


def _content_type(row: Any) -> ContentType:
    return ContentType.objects.get_for_model(RuleSetState if row is None else row)


def _entries() -> Any:
    """Return the model of the admin's log; imported here, because the app must be installed."""
    from django.contrib.admin.models import LogEntry

    return LogEntry
