"""What a log does not contain, and which rules cannot be replayed because of that."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from django.utils.translation import gettext as _

from ...conf import settings
from ...inspection.request import has_limiter
from ...rules.ruleset import RuleSet
from .rule_sets import changed

#: What the lines of a log may lack, beside identities.
DURATION: Final = "duration"


class LeftOut(NamedTuple):
    """A rule that is not replayed. lacks: the identities that the log does not contain, and "duration"."""

    rule: str
    lacks: tuple[str, ...]

    def __str__(self) -> str:
        if self.lacks == (DURATION,):
            return _("%(rule)s: left out, because the log has no durations") % {"rule": self.rule}
        known = {"user": _("users"), "ip": _("addresses"), "api_key": _("API keys"), "session": _("sessions")}
        words = {"rule": self.rule, "lacks": ", ".join(known.get(name, name) for name in self.lacks)}
        return _("%(rule)s: left out, because the log cannot tell %(lacks)s apart") % words


def without_blind_spots(rules: RuleSet, known: Collection[str], held: Collection[str]) -> tuple[RuleSet, list[LeftOut]]:
    """Return the rules that can be replayed, and the others.

    known: the identities in the log. held: see `LogFormat`. Without durations, a limit of requests in progress would
    reject nobody.
    """
    usable, left_out = [], []
    for rule in rules.rules:
        lacks = [name for name in rule.partition_by if name not in known and not name.startswith("path:")]
        if DURATION not in held and any(
            each.limit.holds_leases for several in rule.limits.values() for each in several
        ):
            lacks.append(DURATION)
        if lacks and not rule.is_off:
            left_out.append(LeftOut(rule.slug, tuple(lacks)))
        else:
            usable.append(rule)
    return changed(rules, usable), left_out


def known_identities(held: Collection[str], mapped: Iterable[str], *, has_users: bool) -> set[str]:
    """Return the identities in a log. held: see `LogFormat`. mapped: those that fields were mapped to."""
    known = set(mapped)
    if "address" in held:
        known.add("ip")
    known.discard("user")
    return known | {"user"} if has_users else known


def doubts(rule_sets: Collection[RuleSet], held: Collection[str], known: Collection[str]) -> list[str]:
    """Return, as text, what the log does not contain, and whether the project lacks the middleware."""
    found = []
    rules = [rule for each in rule_sets for rule in each.rules if not rule.is_off]
    if not has_limiter():
        found.append(_("RateLimitMiddleware is not in MIDDLEWARE, so rules apply only to views that ask for them."))
    if not {"user", "api_key", "tier"} & set(known) and any(rule.depends_on_tier for rule in rules):
        found.append(_("The log names no users and no API keys, so every caller has the tier of anonymous callers."))
    if settings.TIER_RESOLVER is not None and "tier" not in known:
        found.append(_("TIER_RESOLVER cannot be called for a log; tiers come from the assignments."))
    slugs = sorted({rule.slug for rule in rules if rule.charge_when != "any"})
    if "status" not in held and slugs:
        found.append(_("The log has no status, so each response counts as a success for %s.") % ", ".join(slugs))
    return found
