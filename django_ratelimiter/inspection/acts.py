"""What operators can do for a caller: each act has a permission, is performed, and then checks its effect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Final, NamedTuple

from django.db.models import Case, Q, QuerySet, When
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..backend import get_engine
from ..conf import settings
from ..models import AccessEntry, Tier, TierAssignment
from ..models.validation import normal_partition
from ..rules import cache, inline, tiers
from ..rules.formatting import end_in_words, listed
from ..rules.ruleset import RuleSet
from ..rules.stored import access_cache, epochs
from ..usage.times import aware, stored
from ..values.access import DIGEST_MARK, AccessRecord, digest_value, parse_digest
from .caller import Caller
from .counters import Counter, Counters, counters_of, read
from .explanation import AccessExplanation
from .giving_back import end_lease, give_back
from .grounds import grounds_of, reader_of
from .tier import as_typed

UNBLOCK: Final = "django_ratelimiter.unblock_caller"
GRANT: Final = "django_ratelimiter.grant_caller"


class InvalidAct(ValueError):
    """An act that is not possible for this caller; the message says why, and nothing was changed."""


class Outcome(NamedTuple):
    """The outcome of an act."""

    text: str
    took: bool = True  # whether a check afterwards found it in force
    changed: bool = True  # False = an act with this number was already started


class Done(NamedTuple):
    """What was done, for the log. row: the written row; `None` = only counters. is_new: it was added."""

    text: str
    row: Any = None
    is_new: bool = False


@dataclass
class Act(ABC):
    """An action of an operator for a caller. Its fields are those of the form.

    kind: its name in the log and on the page's buttons. permission: that it needs. writes: the
    model of the row that it writes, in a transaction; `None` = it calls the engine, outside of a transaction.
    """

    kind: ClassVar[str]
    permission: ClassVar[str]
    writes: ClassVar[type[Any] | None] = None

    @abstractmethod
    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        """Do it. Raises InvalidAct, EngineUnavailable and ValidationError."""

    @abstractmethod
    def check(self, caller: Caller, done: Done) -> Outcome:
        """Check after the commit, with the engine and the database, whether it took effect."""


@dataclass
class ResetCounters(Act):
    """Reset counters of a caller."""

    kind = "reset"
    permission = UNBLOCK
    counters: Sequence[str] = ()  # names of counters; empty = all of the caller's own

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        if problem := epochs.held().problem:
            raise InvalidAct(problem)
        self._counters = counters = own_counters(caller, self.counters)
        get_engine().reset([each.charge for each in counters])
        rules = listed(dict.fromkeys(each.rule.slug for each in counters))
        return Done(ngettext("Reset %(count)d counter: %(rules)s.", "Reset %(count)d counters: %(rules)s.",
                             len(counters)) % {"count": len(counters), "rules": rules})  # fmt: skip

    def check(self, caller: Caller, done: Done) -> Outcome:
        after = read(Counters(self._counters))
        blocked = [each for each in after.counters if each.is_blocked]
        if after.problem:
            return unchecked(done)
        if blocked:
            rules = listed(dict.fromkeys(each.rule.slug for each in blocked))
            return Outcome(_("%(done)s Still blocked by: %(rules)s.") % {"done": done.text, "rules": rules}, took=False)
        text = _("%(done)s Checked: none of them blocks the caller now.")
        return Outcome(text % {"done": done.text})


@dataclass
class _CounterAct(Act):
    """An act on one of the caller's own counters, by its name."""

    permission = UNBLOCK
    counter: str  # the name of the counter

    def found(self, caller: Caller) -> Counter:
        """Return the counter, and store it for the check. Raises InvalidAct."""
        self._counter = own_counters(caller, [self.counter])[0]
        return self._counter

    def check(self, caller: Caller, done: Done) -> Outcome:
        [after] = read(Counters([self._counter])).counters
        if after.verdict is None:
            return unchecked(done)
        text = (
            _("%(done)s Checked: %(left)s of %(capacity)s are free now.")
            if after.leases
            else _("%(done)s Checked: %(left)s of %(capacity)s are left now.")
        )
        return self.judged(text % {"done": done.text, "left": after.left, "capacity": after.capacity}, after)

    def judged(self, text: str, after: Counter) -> Outcome:
        """Return the outcome with this text about the counter's later state."""
        return Outcome(text)


@dataclass
class GiveBack(_CounterAct):
    """Refund units of one counter."""

    kind = "refund"
    units: int  # 1 or more

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        counter = self.found(caller)
        if counter.leases:
            raise InvalidAct(_("Units in progress cannot be given back; end a lease."))
        if self.units < 1:
            raise InvalidAct(_("Give back 1 unit or more."))
        self._given = give_back(counter, self.units)
        text = ngettext(
            "Gave back %(given)d of %(units)d unit: %(rule)s.",
            "Gave back %(given)d of %(units)d units: %(rule)s.",
            self.units,
        )
        return Done(text % {"given": self._given, "units": self.units, "rule": counter.rule.slug})

    def judged(self, text: str, after: Counter) -> Outcome:
        if self._given >= self.units or not after.used:
            return Outcome(text)
        rest = _("The rest was used before the current window, or is in use. It can only be reset.")
        return Outcome(f"{text} {rest}", took=False)


@dataclass
class EndLease(_CounterAct):
    """End a lease: its slot is free at once. The request continues."""

    kind = "end-lease"
    began_us: int  # when it began, as in the list of leases

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        counter = self.found(caller)
        if not counter.leases:
            raise InvalidAct(_("This counter holds no leases."))
        if not end_lease(counter, self.began_us):
            raise InvalidAct(_("There is no such lease any more."))
        return Done(_("Ended a lease: %(rule)s.") % {"rule": counter.rule.slug})


def unchecked(done: Done) -> Outcome:
    """Return the outcome of an act after which the engine did not answer."""
    return Outcome(
        _("%(done)s It could not be checked, because Redis does not answer now.") % {"done": done.text}, took=False
    )


def counters_now(caller: Caller) -> Counters:
    """Return the caller's counters under the current rules."""
    rules = cache.latest_rules()
    return counters_of(caller, rules, grounds_of(caller, rules).entitlement)


def own_counters(caller: Caller, names: Collection[str] = ()) -> list[Counter]:
    """Return the caller's own counters with these names; without names, all. Raises InvalidAct if there is none."""
    own = counters_now(caller).own
    known = dict.fromkeys(each.name for each in own)
    if not known:
        raise InvalidAct(_("No rule in force counts this caller separately."))
    if not known.keys() >= {*names}:
        problem, right = _("There is no such counter of this caller's own."), _("The caller's counters: %s.")
        raise InvalidAct(f"{problem} {right % listed(known)}")
    return [each for each in own if each.name in (names or known)]


@dataclass
class _Grant(Act):
    """An act with an end."""

    permission = GRANT
    until: datetime  # when it ends: a time, or a date, which includes that day

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        try:
            self.until = stored(aware(self.until))
        except OverflowError as error:
            raise InvalidAct(_("Choose until when.")) from error
        if self.until <= timezone.now():
            raise InvalidAct(_("The end must be in the future."))
        return _for_whom(self.grant(caller, operator, reason, end_in_words(self.until)), caller)

    @abstractmethod
    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        """Do it. until: the end, as text."""


class _Assign(_Grant):
    """Assign a tier, or a multiplier."""

    writes = TierAssignment

    def check(self, caller: Caller, done: Done) -> Outcome:
        """Read the entitlement as for a request, without caches."""
        _forget()
        if caller.kind == "digest":  # no request with its values can be made up
            tier = grounds_of(caller, cache.latest_rules()).tier
            return Outcome(_obeyed(done, caller), took=done.row.pk in (tier.assignment, tier.multiplied_by))
        rules, reasons = cache.latest_rules(), dict[str, int]()
        identity = caller.user_id, caller.api_key, caller.partition, reader_of(caller), reasons.__setitem__
        found = cache.entitlement_for(rules, *identity)
        if done.row.pk in reasons.values():
            return Outcome(_obeyed(done, caller))
        text = _("%(done)s But another assignment applies: tier %(tier)s, %(multiplier)s times each limit.")
        figures = {"tier": found.tier or pgettext("tier", "none"), "multiplier": as_typed(found.multiplier)}
        return Outcome(text % {"done": done.text, **figures}, took=False)


def why_not_more(rules: RuleSet) -> str:
    """Return why no caller can be given more; "" = one can."""
    if tiers.callers_differ(rules):
        return ""
    return _("Without tiers all callers have the same limits. Add a default tier under Tiers first.")


@dataclass
class GrantMore(_Assign):
    """Multiply every limit of a caller until a time, on top of what the caller has; the tier stays as it is."""

    kind = "more"
    multiplier: Decimal  # times each limit

    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        if not 0 < self.multiplier < 100_000:
            raise InvalidAct(_("The multiplier must be above 0."))
        if problem := why_not_more(cache.latest_rules()):
            raise InvalidAct(problem)
        row = _assignment(caller, None, self.multiplier, self.until, operator, reason)
        text = _("%(multiplier)s times each limit until %(until)s.")
        return Done(text % {"multiplier": as_typed(self.multiplier), "until": until}, row, True)


@dataclass
class MoveTier(_Assign):
    """Assign a caller to another tier until a time."""

    kind = "tier"
    tier: str  # its slug

    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        tier = Tier.objects.filter(slug=self.tier).first()
        if tier is None:
            raise InvalidAct(_("There is no tier “%(slug)s”.") % {"slug": self.tier})
        row = _assignment(caller, tier, Decimal(1), self.until, operator, reason)
        return Done(_("Tier %(tier)s until %(until)s.") % {"tier": self.tier, "until": until}, row, True)


class _SetAccess(_Grant):
    """Write an access entry with an end; its action is the kind of the act."""

    writes = AccessEntry

    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        kind, value = _subject_of_entry(caller)
        row = _own_entries(caller).first()
        is_new = row is None
        if row is not None:
            _check_entry(row, self.kind, self.until)
        row = row or AccessEntry(kind=kind, value=value)
        row.action, row.expires_at, row.reason = self.kind, self.until, reason[:200]
        row.full_clean()
        row.save()
        text = _("Denied until %(until)s.") if self.kind == "deny" else _("Allowed past all rules until %(until)s.")
        return Done(text % {"until": until}, row, is_new)

    def check(self, caller: Caller, done: Done) -> Outcome:
        _forget()
        found = _entry_in_force(caller)
        if found is None or found.action != self.kind:
            return Outcome(_("%(done)s But another access entry applies.") % {"done": done.text}, took=False)
        return Outcome(_obeyed(done, caller))


class Allow(_SetAccess):
    """Exempt a caller from all rules until a time."""

    kind = "allow"


class Deny(_SetAccess):
    """Reject every request of a caller until a time."""

    kind = "deny"


@dataclass
class EndAccess(Act):
    """End the access entry of a caller now. An entry without an end needs the permission to change entries."""

    kind = "end-access"
    permission = GRANT
    writes = AccessEntry

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        in_force = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        row = _own_entries(caller).filter(in_force).first()
        if row is None:
            raise InvalidAct(_("No access entry of this caller's own is in force."))
        if row.expires_at is None:
            raise InvalidAct(_endless(row))
        row.expires_at = timezone.now()
        row.save(update_fields=["expires_at"])
        return _for_whom(Done(_("Ended the access entry “%(entry)s”.") % {"entry": row}, row), caller)

    def check(self, caller: Caller, done: Done) -> Outcome:
        _forget()
        if _entry_in_force(caller) is not None:
            return Outcome(_("%(done)s But another access entry applies.") % {"done": done.text}, took=False)
        text = _(
            "%(done)s Checked: no access entry applies any more. Every process follows within %(seconds)s seconds."
        )
        return Outcome(text % {"done": done.text, "seconds": f"{settings.TIER_CACHE_SECONDS:g}"})


#: All acts, by kind.
ACTS: Final[dict[str, type[Act]]] = {
    act.kind: act for act in (ResetCounters, GiveBack, EndLease, GrantMore, MoveTier, Allow, Deny, EndAccess)
}


def can_end(caller: Caller, entry: AccessExplanation | None) -> bool:
    """Return whether this active entry is about exactly this caller, and has an end. `None` = there is none."""
    if entry is None or entry.until is None:
        return False
    is_own_digest = entry.kind == "digest" and parse_digest(entry.value)[1] in _own_digests(caller)
    return is_own_digest or _own_subject(caller) == (entry.kind, entry.value)


def _for_whom(done: Done, caller: Caller) -> Done:
    """Return the same with the keys that it is for, of an owner with several: one, or all."""
    if caller.is_one_key:
        text = _("%(done)s For the API key %(key)s… alone.") % {"done": done.text, "key": str(caller.api_key)[:8]}
        return done._replace(text=text)
    return done._replace(text=_("%s For all API keys of this owner.") % done.text) if caller.owner else done


def _endless(row: AccessEntry) -> str:
    return _("The access entry “%(entry)s” is in force without an end. Edit it on its own page.") % {"entry": row}


def _check_entry(row: AccessEntry, action: str, until: datetime) -> None:
    """Raise if this would weaken an active entry: one with another action, or that ends later or never."""
    if row.expires_at is not None and row.expires_at <= timezone.now():
        return
    if row.action == action and row.expires_at is not None and row.expires_at <= until:
        return
    if row.expires_at is None:
        raise InvalidAct(_endless(row))
    text = _("The access entry “%(entry)s” is in force until %(until)s. Edit it on its own page.")
    raise InvalidAct(text % {"entry": row, "until": end_in_words(row.expires_at)})


def _assignment(
    caller: Caller, tier: Tier | None, multiplier: Decimal, until: datetime, operator: Any, reason: str
) -> TierAssignment:
    assignment = TierAssignment(tier=tier, multiplier=multiplier, starts_at=None, ends_at=until, reason=reason[:200])
    assignment.created_by = operator
    if caller.kind == "user" and caller.user is not None:
        assignment.user = caller.user
    elif caller.kind == "api_key" and caller.api_key:
        assignment.api_key_hash = caller.api_key
    elif caller.kind == "digest":
        assignment.partition = f"{DIGEST_MARK}{_subject_of_entry(caller)[1]}"
    else:
        partition = None if caller.kind == "user" else caller.partition(_names(caller))
        if partition is None:
            raise InvalidAct(_("Nothing can be assigned to a user who does not exist."))
        assignment.partition = normal_partition(partition)
    assignment.full_clean()
    assignment.save()
    return assignment


def _names(caller: Caller) -> tuple[str, ...]:
    return tuple(caller.known) if caller.kind == "partition" else (caller.kind,)


def _subject_of_entry(caller: Caller) -> tuple[str, str]:
    kind, value = _own_subject(caller)
    if value is None:
        raise InvalidAct(_("No rule in force counts this caller by values that an access entry can name."))
    return kind, value


def may_have_entry(caller: Caller) -> bool:
    """Return whether an access entry can name exactly this caller."""
    return _own_subject(caller)[1] is not None


def _own_subject(caller: Caller) -> tuple[str, str | None]:
    """Return kind and value of an entry that names exactly this caller; without a value if there can be none."""
    value = {"user": caller.user_id, "api_key": caller.api_key, "ip": caller.address}.get(caller.kind)
    if value is not None:
        return caller.kind, value
    ways = [] if caller.is_everybody or caller.is_nobody or caller.is_unreadable else _ways_of(caller)
    return "digest", digest_value(ways, caller.digest) if ways else None


def _ways_of(caller: Caller) -> list[tuple[str, ...]]:
    """Return by what rules may count this caller. Of a digest it is not known, unless it comes with its rule."""
    if caller.kind != "digest":
        return [_names(caller)]
    split = [rule for rule in cache.latest_rules().rules if rule.partition_by]
    rules = [rule for rule in split if rule.slug == caller.rule] or (
        [] if caller.rule.startswith(inline.PREFIX) else split
    )
    stand_in = [("ip",)] if any(rule.missing_partition == "ip" for rule in rules) else []
    return list(dict.fromkeys([*(rule.partition_by for rule in rules), *stand_in]))


def _own_digests(caller: Caller) -> list[str]:
    """Return the digests of this caller alone; one of several keys has only those of its owner."""
    return [] if caller.is_one_key else [caller.digest, *caller.digests_by(_names(caller))]


def _own_entries(caller: Caller) -> QuerySet[AccessEntry]:
    """Return the entries that name exactly this caller, the one by its value first."""
    kind, value = _subject_of_entry(caller)
    named = [Q(kind="digest", value__endswith=f":{digest}") for digest in _own_digests(caller)]
    is_digest = Case(When(kind="digest", then=1), default=0)
    return AccessEntry.objects.filter(reduce(or_, named, Q(kind=kind, value=value))).order_by(is_digest, "pk")


def _entry_in_force(caller: Caller) -> AccessRecord | None:
    return cache.access_list().lookup(caller.address, caller.user_id, caller.api_key, digests_of=caller.digests_by)


def _obeyed(done: Done, caller: Caller) -> str:
    text = _("%(done)s Checked: it is in force. Every process applies it within %(seconds)s seconds.")
    if caller.kind == "digest" and not caller.rule:  # typed: no list of callers has it
        text = _(
            "%(done)s It is not known whether a caller has this digest. Processes apply it in %(seconds)s seconds."
        )
    return text % {"done": done.text, "seconds": f"{settings.TIER_CACHE_SECONDS:g}"}


def _forget() -> None:
    """Drop this process's cached assignments and entries; others drop theirs within TIER_CACHE_SECONDS."""
    tiers.forget()
    access_cache.forget()
