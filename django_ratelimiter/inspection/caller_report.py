"""A caller's report: who it is, its tier and why, its counters now, and what happened lately. Nothing is charged.

The caller's page shows it, and `manage.py ratelimit caller` prints its lines or its data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.utils.translation import gettext as _

from ..exceptions import EngineUnavailable
from ..rules import cache
from ..rules.formatting import until_in_words
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from .caller import Caller
from .counters import Blocking, CallerRejection, Counter, Counters, Unread, counters_of, rejected_by_more, rejections_of
from .grounds import Grounds, grounds_of, may_be_denied
from .members import Members, read_members
from .references import Name, labelled, labels_of
from .reset import LogLine, log_of
from .words import at_limit_in_words, counter_in_words, exempt_in_words, rejection_in_words, tier_in_words


@dataclass(frozen=True)
class CallerReport(Grounds):
    """A caller: its grounds, and the current state of all counters.

    Of a digest, and of a user that is not in the database, only counters in use count. The last four are for the
    caller's page.
    """

    MEMBERS: ClassVar = (
        *("caller", "enforced", "blocked", "blocked_shared", "blocked_scopes", "access", "exempt", "tier", "counters"),
        *("unread", "unlimited", "rejections", "log", "problem"),
    )

    caller: Caller
    enforced: bool  # false while all enforcement is stopped
    #: By counters of its own, or of a customer's users and keys. `None` = not known: of a digest whom no rule rejects
    #: that has rejected it lately, of a customer whose users and keys were not all looked at, without Redis, and if
    #: EXEMPT fails.
    blocked: bool | None
    counters: Sequence[Counter]
    unread: Sequence[Unread]
    unlimited: Sequence[RuleRecord]  # rules without a limit for the tier
    rejections: Sequence[CallerRejection]
    log: Sequence[LogLine]
    problem: str  # why Redis could not be reached; empty = it was reached

    rules: RuleSet
    own: Sequence[Counter]  # all of its own counters
    blocking: Blocking  # the counters shown that reject the caller now
    members: Members | None  # of a customer
    unseen: str  # in words, what might block the caller and cannot be read; "" = nothing

    @property
    def blocked_shared(self) -> list[RuleRecord]:
        """Rules whose counter all callers share and is used up: they reject everybody now."""
        return list(dict.fromkeys(each.rule for each in self.blocking.shared))

    @property
    def blocked_scopes(self) -> list[RuleRecord]:
        """Rules for a scope that no view names, which now reject tasks and other code that ask for it."""
        found = () if self.caller.kind == "digest" else self.blocking.elsewhere
        return list(dict.fromkeys(each.rule for each in found))

    @property
    def is_partly(self) -> bool:
        """True if not the customer is blocked, but only some of its users and keys."""
        is_own = self.blocking.own if self.access is None else self.access.action == "deny"
        some = self.blocked and not is_own and self.members
        return bool(some and (some.unseen or len(some.blocked) < len(some.found)))

    @property
    def is_unknown(self) -> bool:
        """True if the caller is a user or customer that does not exist, and nothing is counted under its key."""
        return self.caller.is_unknown_row and all(each.used == 0 for each in self.counters if not each.shared)


def report_of(caller: Caller) -> CallerReport:
    """Return the report of a caller."""
    rules = cache.latest_rules()
    [grounds] = grounds_of([caller], rules)
    found = counters_of(caller, rules, grounds.entitlement)
    shown = found.of(caller)
    is_customer = caller.kind == "customer" and caller.customer is not None
    members = read_members(caller, rules, grounds.entitlement) if is_customer else None
    callers = [caller, *(each.caller for each in (members.found if members else ()))]
    known = {name for each in callers[1:] or callers for name in each.known}
    rejections, problem = list[CallerRejection](), found.problem
    unseen = [members.unseen if members else may_be_denied([caller])]
    try:
        rejections = rejections_of(caller, found, rules)
        if of_pairs := rejected_by_more(callers, rules):
            unseen.append(_("Rules that count by more values have rejected it lately: %s.") % ", ".join(of_pairs))
    except EngineUnavailable as error:
        problem = str(error)
    return CallerReport(
        **vars(grounds),
        caller=caller,
        enforced=rules.enforced,
        blocked=_is_blocked(caller, grounds, found, members, unseen) if rules.enforced else False,
        counters=shown.counters,
        unread=[each for each in found.unread if not {*each.missing} <= known],
        unlimited=found.unlimited,
        rejections=rejections,
        log=log_of(caller),
        problem=problem,
        rules=rules,
        own=found.own,
        blocking=shown.blocking if rules.enforced and not grounds.exempt else Blocking(),
        members=members,
        unseen=" ".join(filter(None, unseen)),
    )


def _is_blocked(
    caller: Caller, grounds: Grounds, found: Counters, members: Members | None, unseen: Collection[str]
) -> bool | None:
    if members is not None and members.blocked:
        return True
    if grounds.access is not None or grounds.exempt:
        return grounds.access is not None and grounds.access.action == "deny"
    if found.problem:
        return None
    if found.of(caller).blocking.own:
        return None if grounds.exempt is None else True
    return None if caller.kind == "digest" or any(unseen) else False


def key_names(caller: Caller, reader: Any = None) -> tuple[str, str]:
    """Return an API key as text, "shop (1a2b3c4d…)", of one of several with whose it is; and whose. "" = no key."""
    key = caller.api_key if caller.owner else caller.value
    names = [Name("api_key", each) for each in (key, caller.owner) if each and caller.kind == "api_key"]
    labels = labels_of(reader, names)
    texts = [labelled(each, labels) for each in names]
    text = _("%(key)s of %(owner)s") % {"key": texts[0], "owner": texts[1]} if texts[1:] else "".join(texts)
    return text, texts[-1] if caller.owner else ""


def lines_of(report: CallerReport) -> Iterator[str]:
    """Yield the lines of the command."""
    who = report.caller
    yield "{} ({}): {}".format(*_headline(report))
    if not (who.is_everybody or who.is_nobody):
        yield from _reasons(report)
    yield from (f"{each.rule.slug}: {each.limit}: {counter_in_words(each)}" for each in report.counters)
    for each in report.unread:
        yield f"{each.rule.slug}: {_('needs to know')} {', '.join(each.missing)}"
    yield from (rejection_in_words(each, report) for each in report.rejections)


def _headline(report: CallerReport) -> tuple[str, str, str]:
    """Return who it is, the digest, and whether the caller is blocked."""
    who, name = report.caller, Name(report.caller.kind, report.caller.value)
    shown = key_names(who)[0] or labelled(name, labels_of(None, [name] if who.kind == "customer" else []))
    named = who.kind if who.kind == "digest" else f"{who.kind} {shown}"
    state = state_in_words(report)
    if who.is_everybody:
        named, state = _("all callers together"), _("they share one counter, so the caller cannot be known from it")
    elif who.is_nobody:
        named, state = _("requests without what the rule %s counts by") % who.rule, _("all of them are rejected")
    return named, who.digest, state


def state_in_words(report: CallerReport) -> str:
    """Return whether the caller is blocked."""
    if report.blocked:
        return _("partly blocked") if report.is_partly else _("blocked")
    free = _("exempt") if report.exempt else _("not blocked")
    return _("whether it is blocked is not known") if report.blocked is None else free


def _reasons(report: CallerReport) -> Iterator[str]:
    who, access = report.caller, report.access
    yield from filter(None, [exempt_in_words(report.exempt)])
    yield from (f"{at_limit_in_words(rule)}: {rule.slug}" for rule in report.blocked_shared)
    if report.blocked_scopes:
        text = _("Only code that asks for their scope, such as a task or a command, is rejected by these rules now:")
        yield f"{text} {', '.join(rule.slug for rule in report.blocked_scopes)}"
    if report.members is not None:
        names = [Name(each.caller.kind, each.caller.value) for each in report.members.blocked]
        labels = labels_of(None, names)
        for each, name in zip(report.members.blocked, names, strict=True):
            rules = ", ".join(dict.fromkeys(counter.rule.slug for counter in each.blocking.own))
            values = {"name": f"{name.kind} {labelled(name, labels)}", "rules": rules or _("an access entry")}
            yield _("blocked: as %(name)s, by %(rules)s") % values
    yield from filter(None, [report.unseen])
    if who.is_unknown_row:
        yield _("There is no such %s. The counters shown are those of requests with this key.") % who.kind
    if access:
        until = until_in_words(access.expires_at) if access.expires_at else _("it is deleted")
        values = {"action": access.action_in_words, "until": until, "reason": access.reason}
        yield _("Access entry: %(action)s until %(until)s. %(reason)s") % values
    if who.kind != "digest" or not report.problem:
        yield _("Tier: %s") % tier_in_words(report.tier)
