"""A caller as data: for `manage.py ratelimit caller` and the JSON API."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from ..rules.formatting import limit_in_words
from .acts import as_typed, moment_in_words
from .caller import Caller
from .counters import Counter, Counters, counters_of, latest_rules
from .grounds import Grounds, grounds_of
from .performing import log_of
from .refusals import CallerRefusal, refusals_of


def summary_of(caller: Caller, reader: Any = None) -> dict[str, Any]:
    """Return who it is, the tier and why, and all counters as they are now. Nothing is charged.

    reader: the user who reads it; `None` = one who may see everything. Of what is hidden from them, nothing is told:
    "blocked" is by rules alone then. Of a digest "blocked" is `None`: its tier, and so its limits, are not known. Of a
    user whom the database does not have, only counters in use count.
    """
    rules = latest_rules()
    grounds = grounds_of(caller, rules)
    found = counters_of(caller, rules, grounds.entitlement)
    grounds = grounds if reader is None else grounds.as_seen_by(reader)
    return {
        "caller": {"kind": caller.kind, "value": caller.value, "digest": caller.digest},
        "enforced": rules.enforced,
        "blocked": _is_blocked(caller, grounds, found) if rules.enforced else False,
        "access": _access(grounds),
        "tier": _tier(grounds),
        "hidden": _hidden(grounds),
        "counters": [_counter(each, caller) for each in found.counters],
        "unread": [{"rule": each.rule.slug, "missing": list(each.missing)} for each in found.unread],
        "unlimited": [rule.slug for rule in found.unlimited],
        "rejections": [_rejection(each) for each in refusals_of(found)],
        "log": [_log_entry(each) for each in log_of(caller)],
        "problem": found.problem,
    }


def _is_blocked(caller: Caller, grounds: Grounds, found: Counters) -> bool | None:
    if grounds.access is not None:
        return grounds.access.action == "deny"
    if caller.kind == "digest":
        return None
    return bool(found.of(caller).blocked)


def _hidden(grounds: Grounds) -> list[str]:
    sees = {"access entries": grounds.sees_entries, "tier assignments": grounds.sees_assignments}
    return [name for name, is_seen in sees.items() if not is_seen]


def _access(grounds: Grounds) -> dict[str, Any] | None:
    entry = grounds.access
    if entry is None:
        return None
    return {"action": entry.action, "until": _time(entry.expires_at), "reason": entry.reason}


def _tier(grounds: Grounds) -> dict[str, Any]:
    tier, assignment = grounds.entitlement.tier, grounds.assignment
    return {
        "slug": None if tier is None else tier.slug,
        "multiplier": as_typed(grounds.entitlement.multiplier),
        "source": grounds.source,
        "assignment": None if assignment is None else assignment.pk,
        "until": None if assignment is None else _time(assignment.ends_at),
        "reason": "" if assignment is None else assignment.reason,
    }


def _counter(counter: Counter, caller: Caller) -> dict[str, Any]:
    return {
        "name": counter.name,
        "rule": counter.rule.slug,
        "mode": counter.rule.mode,
        "limit": limit_in_words(counter.record),
        "capacity": counter.capacity,
        "used": counter.used,
        "left": counter.left,
        "full_in": counter.full_in,
        "blocked": None if caller.kind == "digest" else counter.is_blocked,
        "blocked_until": _time(counter.blocked_until),
        "shared": counter.is_shared,
        "leases": counter.charge.limit.holds_leases,
    }


def _rejection(refusal: CallerRefusal) -> dict[str, Any]:
    return {**refusal._asdict(), "at": _time(refusal.at), "since": _time(refusal.since)}


def _log_entry(entry: Any) -> dict[str, Any]:
    return {"at": _time(entry.at), "by": entry.operator, "text": entry.text}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def in_words(summary: dict[str, Any]) -> list[str]:
    """Return the lines that the command writes."""
    tier, access = summary["tier"], summary["access"]
    caller = "{kind} {value} ({digest})".format(**summary["caller"])
    states = {None: _("whether it is blocked is not known"), True: _("blocked"), False: _("not blocked")}
    lines = [f"{caller}: {states[summary['blocked']]}"]
    if access:
        lines.append(_("Access entry: %(action)s until %(until)s. %(reason)s") % {
            **access, "until": _words(access["until"]) or _("it is deleted")})  # fmt: skip
    lines.append(_("Tier: %(slug)s, %(multiplier)s times each limit (%(source)s)") % {
        **tier, "slug": tier["slug"] or _("none")})  # fmt: skip
    lines += [_line(each) for each in summary["counters"]]
    for each in summary["unread"]:
        lines.append(f"{each['rule']}: {_('needs to know')} {', '.join(each['missing'])}")
    if summary["problem"]:
        lines.append(_("Redis cannot be asked now: %s") % summary["problem"])
    return lines


def _line(counter: dict[str, Any]) -> str:
    if counter["used"] is None:
        return f"{counter['rule']}: {counter['limit']}"
    text = _("%(rule)s: %(used)s of %(capacity)s used, %(left)s left (%(limit)s)") % counter
    if counter["blocked"]:
        until = _words(counter["blocked_until"])
        text += ", " + (_("blocked until %s") % until if until else _("blocked always"))
    return text


def _words(text: str | None) -> str:
    return "" if text is None else moment_in_words(datetime.fromisoformat(text))
