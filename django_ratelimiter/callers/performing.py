"""Acts as they are performed: with a permission, a reason and a number that is good for one time, and in the log."""

from __future__ import annotations

import secrets
from typing import Any, Final

from django.contrib.contenttypes.models import ContentType
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import F
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

_SALT: Final = "django_ratelimiter.callers"


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
        raise ActRefused(_("Say why: the reason stands in the log."))
    if len(reason) > MAX_REASON or "\0" in reason:
        raise ActRefused(_("The reason must have %(count)d characters at most.") % {"count": MAX_REASON})
    with transaction.atomic(using=storage.primary()):
        # A write, so that of two who send the same form the second waits, on every database.
        storage.state().update(number=F("number"))
        if _is_done(operator, caller, _mark(act, number)):
            return Outcome(_("This was done already, so nothing was changed."), took=True, changed=False)
        problem: EngineUnavailable | None = None
        try:
            done = act.do(caller, operator, reason)
            _log(operator, caller, done, reason, _mark(act, number))
        except EngineUnavailable as error:
            problem = error
            _log(operator, caller, Done(_("Tried, without an answer from Redis.")), reason)
    if problem is not None:
        raise problem
    return act.check(caller, done)


def log_of(caller: Caller, most: int = 10) -> list[Any]:
    """Return the latest entries of the log about this caller."""
    rows = _entries().objects.filter(content_type=_content_type(None), object_id=caller.digest)
    return list(rows.select_related("user").order_by("-action_time", "-pk")[:most])


def _is_done(operator: Any, caller: Caller, mark: str) -> bool:
    """Return whether this operator did such an act of this number on this caller."""
    rows = _entries().objects.using(router.db_for_write(_entries())).filter(user_id=operator.pk)
    rows = rows.filter(content_type=_content_type(None), object_id=caller.digest)
    return bool(rows.filter(change_message__endswith=mark).exists())


def _log(operator: Any, caller: Caller, done: Done, reason: str, mark: str = "") -> None:
    """Write it about the caller, and about the row that was written, if one was."""
    entries, row = _entries(), done.row
    message = _("%(done)s Reason: %(reason)s") % {"done": done.text, "reason": reason}
    entries.objects.create(
        user_id=operator.pk,
        content_type=_content_type(None),
        object_id=caller.digest,
        object_repr=str(caller)[:200],
        action_flag=2,  # a change
        change_message=f"{message} {mark}".strip(),
    )
    if row is not None:
        entries.objects.create(
            user_id=operator.pk,
            content_type=_content_type(row),
            object_id=str(row.pk),
            object_repr=str(row)[:200],
            action_flag=1 if done.is_new else 2,
            change_message=message,
        )


def _mark(act: Act, number: str) -> str:
    return f"[{act.kind} {number}]"


def _content_type(row: Any) -> ContentType:
    return ContentType.objects.get_for_model(RuleSetState if row is None else row)


def _entries() -> Any:
    """Return the model of the admin's log; imported here, for the app must be installed."""
    from django.contrib.admin.models import LogEntry

    return LogEntry
