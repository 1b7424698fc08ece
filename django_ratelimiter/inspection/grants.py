"""Acts that give a caller more quota, another tier, or access for a while: rows in the database with an end."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ..conf import settings
from ..models import AccessEntry, Tier, TierAssignment
from ..models.validation import normal_partition
from ..rules import cache, tiers
from ..rules.formatting import end_in_words
from ..rules.stored import access_cache
from ..values.access import ACTIONS
from .acts import GRANT, Act, ActRefused, Done, Outcome, as_typed
from .caller import Caller
from .grounds import grounds_of


class _Grant(Act):
    """An act with an end. until: its time."""

    permission = GRANT
    writes_rows = True
    until: datetime

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        if self.until <= timezone.now():
            raise ActRefused(_("The end must be in the future."))
        return self.grant(caller, operator, reason, end_in_words(self.until))

    @abstractmethod
    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        """Do it. until: the end, as text."""


class _Assign(_Grant):
    """Assign a tier and a multiplier."""

    def assign(self, caller: Caller, tier: str, multiplier: Decimal, operator: Any, reason: str) -> TierAssignment:
        """Return the new row, and store the assignment for the check."""
        self._wanted = tier, multiplier
        return _assignment(caller, tier, multiplier, self.until, operator, reason)

    def check(self, caller: Caller, done: Done) -> Outcome:
        """Read the entitlement as for a request, without caches."""
        _forget()
        rules = cache.latest_rules()
        found = cache.entitlement_for(rules, caller.user_id, caller.api_key, caller.partition)
        if (str(found.tier or ""), found.multiplier) == self._wanted:
            return Outcome(_obeyed(done))
        text = _("%(done)s But another assignment applies: tier %(tier)s, %(multiplier)s times each limit.")
        figures = {"tier": found.tier or pgettext("tier", "none"), "multiplier": as_typed(found.multiplier)}
        return Outcome(text % {"done": done.text, **figures}, took=False)


@dataclass
class GrantMore(_Assign):
    """Multiply every limit of the caller until a time; the tier does not change."""

    kind = "more"
    multiplier: Decimal
    until: datetime

    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        if not 0 < self.multiplier < 100_000:
            raise ActRefused(_("The multiplier must be above 0."))
        tier = grounds_of(caller, cache.latest_rules()).entitlement.tier
        if tier is None:
            raise ActRefused(_why_not_more())
        row = self.assign(caller, tier.slug, self.multiplier, operator, reason)
        text = _("%(multiplier)s times each limit until %(until)s, tier %(tier)s.")
        return Done(text % {"multiplier": as_typed(self.multiplier), "until": until, "tier": tier.slug}, row, True)


def _why_not_more() -> str:
    """Return why a caller without a tier cannot get more, and what to do instead."""
    if Tier.objects.exists():
        return _("The caller has no tier that could be multiplied. Choose a tier for a while instead.")
    return _(
        "The caller has no tier that could be multiplied. Add a default tier under Tiers, then try again. "
        "Limits for “every other tier” stay the same."
    )


@dataclass
class MoveTier(_Assign):
    """Assign the caller to a tier until a time."""

    kind = "tier"
    tier: str
    until: datetime

    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        row = self.assign(caller, self.tier, Decimal(1), operator, reason)
        return Done(_("Tier %(tier)s until %(until)s.") % {"tier": self.tier, "until": until}, row, True)


@dataclass
class SetAccess(_Grant):
    """Exempt the caller from all rules, or deny every request, until a time."""

    kind = "access"
    action: str
    until: datetime

    def grant(self, caller: Caller, operator: Any, reason: str, until: str) -> Done:
        if self.action not in ACTIONS:
            raise ActRefused(_("Choose allow or deny."))
        kind, value = _subject_of_entry(caller)
        row = AccessEntry.objects.filter(kind=kind, value=value).first()
        is_new = row is None
        if row is not None:
            _check_entry(row, self.action, self.until)
        row = row or AccessEntry(kind=kind, value=value)
        row.action, row.expires_at, row.reason = self.action, self.until, reason[:200]
        row.full_clean()
        row.save()
        text = _("Denied until %(until)s.") if self.action == "deny" else _("Allowed past all rules until %(until)s.")
        return Done(text % {"until": until}, row, is_new)

    def check(self, caller: Caller, done: Done) -> Outcome:
        _forget()
        found = cache.access_list().lookup(caller.address, caller.user_id, caller.api_key)
        if found is None or found.action != self.action:
            return Outcome(_("%(done)s But another access entry applies.") % {"done": done.text}, took=False)
        return Outcome(_obeyed(done))


@dataclass
class EndAccess(Act):
    """End the caller's own access entry now. An entry without an end needs the permission to change entries."""

    kind = "unset"
    permission = GRANT
    writes_rows = True

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        kind, value = _subject_of_entry(caller)
        in_force = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        row = AccessEntry.objects.filter(in_force, kind=kind, value=value).first()
        if row is None:
            raise ActRefused(_("No access entry of this caller's own is in force."))
        if row.expires_at is None:
            raise ActRefused(_endless(row))
        row.expires_at = timezone.now()
        row.save(update_fields=["expires_at"])
        return Done(_("Ended the access entry “%(entry)s”.") % {"entry": row}, row)

    def check(self, caller: Caller, done: Done) -> Outcome:
        _forget()
        if cache.access_list().lookup(caller.address, caller.user_id, caller.api_key) is not None:
            return Outcome(_("%(done)s But another access entry applies.") % {"done": done.text}, took=False)
        text = _(
            "%(done)s Checked: no access entry applies any more. Every process follows within %(seconds)s seconds."
        )
        return Outcome(text % {"done": done.text, "seconds": f"{settings.TIER_CACHE_SECONDS:g}"})


def can_end(caller: Caller, entry: AccessEntry | None) -> bool:
    """Return whether this active entry is about exactly this caller, and has an end. `None` = there is none."""
    return entry is not None and entry.expires_at is not None and _own_subject(caller) == (entry.kind, entry.value)


def _endless(row: AccessEntry) -> str:
    return _("The access entry “%(entry)s” is in force without an end. Edit it on its own page.") % {"entry": row}


def _check_entry(row: AccessEntry, action: str, until: datetime) -> None:
    """Raise if this would weaken an active entry: one with another action, or that ends later or never."""
    if row.expires_at is not None and row.expires_at <= timezone.now():
        return
    if row.action == action and row.expires_at is not None and row.expires_at <= until:
        return
    if row.expires_at is None:
        raise ActRefused(_endless(row))
    text = _("The access entry “%(entry)s” is in force until %(until)s. Edit it on its own page.")
    raise ActRefused(text % {"entry": row, "until": end_in_words(row.expires_at)})


def _assignment(
    caller: Caller, tier: str, multiplier: Decimal, until: datetime, operator: Any, reason: str
) -> TierAssignment:
    if settings.TIER_RESOLVER is not None:
        raise ActRefused(_("RATELIMITER['TIER_RESOLVER'] finds the tiers, so assignments are not used."))
    row = Tier.objects.filter(slug=tier).first()
    if row is None:
        raise ActRefused(_("There is no tier “%(slug)s”.") % {"slug": tier})
    assignment = TierAssignment(tier=row, multiplier=multiplier, starts_at=None, ends_at=until, reason=reason[:200])
    assignment.created_by = operator
    if caller.kind == "user" and caller.user is not None:
        assignment.user = caller.user
    elif caller.kind == "api_key" and caller.api_key:
        assignment.api_key_hash = caller.api_key
    else:
        partition = None if caller.kind in ("user", "digest") else caller.partition(_names(caller))
        if partition is None:
            raise ActRefused(_("Nothing can be assigned to this caller: only the digest is known."))
        assignment.partition = normal_partition(partition)
    assignment.full_clean()
    assignment.save()
    return assignment


def _names(caller: Caller) -> tuple[str, ...]:
    return tuple(caller.known) if caller.kind == "partition" else (caller.kind,)


def _subject_of_entry(caller: Caller) -> tuple[str, str]:
    kind, value = _own_subject(caller)
    if value is None:
        raise ActRefused(_("Only users, API keys and addresses can be allowed or denied."))
    return kind, value


def _own_subject(caller: Caller) -> tuple[str, str | None]:
    return caller.kind, {"user": caller.user_id, "api_key": caller.api_key, "ip": caller.address}.get(caller.kind)


def _obeyed(done: Done) -> str:
    text = _("%(done)s Checked: it is in force. Every process applies it within %(seconds)s seconds.")
    return text % {"done": done.text, "seconds": f"{settings.TIER_CACHE_SECONDS:g}"}


def _forget() -> None:
    """Drop this process's cached assignments and entries; others drop theirs within TIER_CACHE_SECONDS."""
    tiers.forget()
    access_cache.forget()
