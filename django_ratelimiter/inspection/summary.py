"""A caller as data: for `manage.py ratelimit caller` and the JSON API."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..rules import cache
from ..rules.formatting import limit_in_words, listed, moment_in_words, units, until_in_words
from ..usage.live.denials import DeniedCaller
from .acts import as_typed
from .caller import Caller
from .counters import Counter, Counters
from .grounds import Grounds, grounds_of
from .performing import log_of
from .reading import counters_of
from .refusals import CallerRefusal, denials_of, refusals_of


def summary_of(caller: Caller, reader: Any = None) -> dict[str, Any]:
    """Return who it is, the tier and why, and the current state of all counters. Nothing is charged.

    reader: the user who reads it; `None` = may see everything. What is hidden from them does not affect the result:
    then "blocked" is by rules alone. "blocked" is `None` while Redis is out of reach; for a digest, whose tier, and so
    its limits, are not known; and for a user that rules may only reject if the view checks a token itself:
    "before_login" has their counters. "blocked_scopes" has the rules that only reject code with a scope that no view
    names. For a user that is not in the database, only counters in use count.
    """
    rules = cache.latest_rules()
    grounds = grounds_of(caller, rules)
    found = counters_of(caller, rules, grounds.entitlement, with_refusals=True)
    grounds = grounds if reader is None else grounds.as_seen_by(reader)
    shown = (found.of(caller) if caller.is_everybody or caller.is_nobody else found).counters
    return {
        "caller": {"kind": caller.kind, "value": caller.value, "digest": caller.digest},
        "enforced": rules.enforced,
        "blocked": _is_blocked(caller, grounds, found) if rules.enforced else False,
        "blocked_scopes": _blocked_scopes(caller, found) if rules.enforced else [],
        "access": _access(grounds),
        "tier": _tier(grounds),
        "hidden": _hidden(grounds),
        "counters": [_counter(each, caller) for each in shown],
        "before_login": [_counter(each, caller) for each in found.before_login],
        "unread": [{"rule": each.rule.slug, "missing": list(each.missing)} for each in found.unread],
        "unlimited": [rule.slug for rule in found.unlimited],
        "rejections": [_rejection(each) for each in refusals_of(found)],
        "denials": [_denial(each) for each in denials_of(caller, found)] if grounds.sees_entries else [],
        "log": [_log_entry(each) for each in log_of(caller, reader)],
        "problem": found.problem,
    }


def _is_blocked(caller: Caller, grounds: Grounds, found: Counters) -> bool | None:
    if grounds.access is not None:
        return grounds.access.action == "deny"
    if caller.kind == "digest" or found.problem:
        return None
    if found.of(caller).blocked_views:
        return True
    return None if found.blocked_before_login or found.unknown_before_login else False


def _blocked_scopes(caller: Caller, found: Counters) -> list[str]:
    if caller.kind == "digest":  # its tier, and so its limits, are not known
        return []
    return list(dict.fromkeys(each.rule.slug for each in found.of(caller).blocked_scopes))


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


def _denial(denial: DeniedCaller) -> dict[str, Any]:
    found = denial._asdict() | {"at": _time(denial.at), "since": _time(denial.since)}
    del found["digest"]  # the same as the caller's
    return found


def _log_entry(entry: Any) -> dict[str, Any]:
    return {"at": _time(entry.at), "by": entry.operator, "text": entry.text}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def in_words(summary: dict[str, Any], who: Caller) -> list[str]:
    """Return the lines of the command. who: the caller of the summary."""
    tier, access = summary["tier"], summary["access"]
    if who.is_everybody or who.is_nobody:
        return [_title_of_nobody(who), *map(_line, summary["counters"])]
    caller = "{kind} {value} ({digest})".format(**summary["caller"])
    lines = [f"{caller}: {_state(summary)}"]
    if summary["blocked_scopes"]:
        text = _("Only code that asks for their scope, such as a task or a command, is rejected by these rules now:")
        lines.append(f"{text} {', '.join(summary['blocked_scopes'])}")
    if who.is_unknown_user:
        lines.append(_("There is no such user. The counters shown are those of requests with this key."))
    if access:
        lines.append(_("Access entry: %(action)s until %(until)s. %(reason)s") % {
            **access, "until": _words(access["until"]) or _("it is deleted")})  # fmt: skip
    source = _("no assignment, and no default") if tier["source"] == "nothing" else tier["source"]
    slug = tier["slug"] or pgettext("tier", "none")
    if tier["multiplier"] == "1":
        lines.append(_("Tier: %s") % f"{slug} ({source})")
    else:
        lines.append(_("Tier: %(slug)s, %(multiplier)s times each limit (%(source)s)") % {
            **tier, "slug": slug, "source": source})  # fmt: skip
    lines += [_line(each) for each in summary["counters"]]
    for each in summary["unread"]:
        lines.append(f"{each['rule']}: {_('needs to know')} {', '.join(each['missing'])}")
    return [*lines, *map(_rejection_line, summary["rejections"]), *map(_denial_line, summary["denials"])]


def _title_of_nobody(who: Caller) -> str:
    """Return the meaning of a reference that names no caller."""
    if who.is_everybody:
        text = _("all callers together (%(digest)s): they share one counter, so the caller cannot be known from it")
    else:
        text = _("requests without what the rule %(rule)s counts by (%(digest)s): all of them are rejected")
    return text % {"digest": who.digest, "rule": who.rule}


def _state(summary: dict[str, Any]) -> str:
    """Return whether the caller is blocked."""
    if summary["blocked"] is not None:
        return _("blocked") if summary["blocked"] else _("not blocked")
    before = [] if summary["problem"] else summary["before_login"]
    blocking = [each["rule"] for each in before if each["blocked"]]
    if not before:
        return _("whether it is blocked is not known")
    if blocking:
        text = _("not blocked if a session logs the user in; blocked where a view checks a token itself, by %(rules)s")
    else:
        text = _("not blocked if a session logs the user in; not known where a view checks a token itself: %(rules)s")
    unknown = [each["rule"] for each in before if each["used"] is None and each["mode"] == "enforce"]
    return text % {"rules": listed(dict.fromkeys(blocking or unknown))}


def own_counters(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the counters of a summary that other callers do not share."""
    return [each for each in summary["counters"] if not each["shared"]]


def _line(counter: dict[str, Any]) -> str:
    if counter["used"] is None:
        return f"{counter['rule']}: {counter['limit']}"
    text = _("%(rule)s: %(used)s of %(capacity)s used, %(left)s left (%(limit)s)") % counter
    if counter["blocked"]:
        until = _words(counter["blocked_until"])
        text += ", " + (_("blocked until %s") % until if until else _("blocked always"))
    return text


def _rejection_line(rejection: dict[str, Any]) -> str:
    if rejection["shadow"]:
        text = _("Would be rejected by %(rule)s: %(times)s since %(since)s, last %(last)s")
    else:
        text = _("Rejected by %(rule)s: %(times)s since %(since)s, last %(last)s")
    about = "≈" * rejection["is_estimate"]
    text %= _times_of(rejection) | {"rule": rejection["rule"], "times": f"{about}{units(rejection['times'])}"}
    return f"{text} ({rejection['reference']})"


def _denial_line(denial: dict[str, Any]) -> str:
    text = _("Denied by an access entry: %(times)s since %(since)s, last %(last)s") % _times_of(denial)
    return f"{text} ({denial['view']})" if denial["view"] else text


def _times_of(record: dict[str, Any]) -> dict[str, str]:
    since, last = (moment_in_words(datetime.fromisoformat(record[name])) for name in ("since", "at"))
    return {"times": units(record["times"]), "since": since, "last": last}


def _words(text: str | None) -> str:
    return "" if text is None else until_in_words(datetime.fromisoformat(text))
