"""What a log does not contain, and which rules cannot be replayed because of that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from django.utils.translation import gettext as _

from ...inspection.request import has_limiter
from ...rules.records import LimitRecord, RuleRecord
from ...rules.ruleset import RuleSet
from .line import AccessLogLine
from .reading import MAX_UNUSABLE
from .rule_sets import changed

#: What the lines of a log may lack, beside identities.
DURATION: Final = "duration"
STATUS: Final = "status"


class Blind(NamedTuple):
    """A rule that cannot be judged. lacks: the identities that the log does not contain, "duration" or "status".

    number: of the lines that lack it, of so many in the file; 0 = all, so that the rule is left out of it. file:
    its name; empty = there is only one. unmatched: tiers of whose callers it decided no request; "" = every other one;
    with `lacks`, some match it. decides: it decided other requests. matches: some requests match it, of whatever tier.
    """

    rule: str
    lacks: tuple[str, ...]
    number: int = 0
    lines: int = 0
    unmatched: tuple[str, ...] = ()
    file: str = ""
    decides: bool = False
    matches: bool = False

    @property
    def is_whole(self) -> bool:
        """True if no request at all tells anything about the rule."""
        return not self.decides and (not self.number or (self.number == self.lines and not self.file))

    def __str__(self) -> str:
        if self.unmatched:
            if self.lacks and self.decides:
                text = _("%(rule)s: not known for tiers whose requests lack what it counts by (%(lacks)s): %(tiers)s")
            elif self.lacks:
                text = _("%(rule)s: not known, because the requests it would decide lack what it counts by (%(lacks)s)")
            elif self.decides:
                text = _(
                    "%(rule)s: not known for these tiers, because no request of their callers matches it: %(tiers)s"
                )
            elif not self.matches:
                text = _("%(rule)s: not known, because no request of the log matches it")
            elif "" in self.unmatched:
                text = _("%(rule)s: not known, because it decides none of the requests that match it")
            else:
                text = _("%(rule)s: not known, because none of the requests that match it is of its tiers: %(tiers)s")
            tiers = ", ".join(each or _("every other") for each in self.unmatched)
            return text % {"rule": self.rule, "lacks": ", ".join(self.lacks), "tiers": tiers}
        words = {"rule": self.rule, "lacks": _in_words(self.lacks)}
        if self.number:
            what = lacking_in_words(self.lacks[0], self.number, self.lines, self.file)
            return _("%(rule)s: not known, because %(what)s") % {"rule": self.rule, "what": what}
        if self.lacks == (DURATION,):
            return _("%(rule)s: left out, because the log has no durations") % words
        return _("%(rule)s: left out, because the log cannot tell %(lacks)s apart") % words


def lacking_in_words(name: str, number: int, lines: int, file: str = "") -> str:
    """Return, as text, how many lines lack an identity, a duration or a status. file: empty = of all."""
    words = {"number": f"{number:,}", "lines": f"{lines:,}", "lacks": _in_words((name,)), "file": file}
    if file:
        return _("%(number)s of %(lines)s lines of %(file)s do not tell %(lacks)s apart") % words
    return _("%(number)s of %(lines)s lines do not tell %(lacks)s apart") % words


def _in_words(names: Iterable[str]) -> str:
    known = {
        "user": _("users"),
        "ip": _("addresses"),
        "api_key": _("API keys"),
        "session": _("sessions"),
        "host": _("hosts"),
        "tier": _("tiers"),
        DURATION: _("durations"),
        STATUS: _("statuses"),
    }
    return ", ".join(known.get(name, name) for name in names)


def without_blind_spots(rules: RuleSet, known: Collection[str], held: Collection[str]) -> tuple[RuleSet, list[Blind]]:
    """Return the rules that can be replayed, and the others.

    known: the identities in the log. held: see `LogFormat`. Without durations, a limit of requests in progress would
    reject nobody.
    """
    usable, left_out = [], []
    for rule in rules.rules:
        lacks = [name for name in rule.partition_by if _source(name) not in known and not name.startswith("path:")]
        if DURATION not in held and _holds_leases(rule):
            lacks.append(DURATION)
        if lacks and not rule.is_off:
            left_out.append(Blind(rule.slug, tuple(lacks)))
        else:
            usable.append(rule)
    return changed(rules, usable), left_out


def changes_of(before: RuleSet | None, after: RuleSet) -> Iterator[tuple[RuleRecord | None, RuleRecord]]:
    """Yield the rules that a rule set adds or changes, each with its earlier state: all, without an earlier set."""
    earlier = {rule.slug: rule for rule in before.rules} if before else {}
    yield from ((old, rule) for rule in after.rules if (old := earlier.get(rule.slug)) != rule and not rule.is_off)


def unmatched(
    before: RuleSet | None, after: RuleSet, decided: Mapping[str, Collection[str]], matched: Collection[str]
) -> Iterator[Blind]:
    """Yield the rules whose limits, or changed limits, no request of the log has met.

    before: `None` = all limits count. decided: the tiers of the callers that each rule has decided on. matched: rules
    that requests match. What the limiter keeps for `after` says whether their callers lacked the value to count by.
    """
    for old, rule in changes_of(before, after):
        if old is not None and replace(old, name=rule.name, limits=rule.limits) != rule:
            old = None
        known = {**(old.limits if old else {}), **rule.limits}
        wanted = [
            tier for tier in known if (new := _limits_of(rule, tier)) and not (old and new == _limits_of(old, tier))
        ]
        met = {tier if tier in known else None for tier in decided.get(rule.slug, ())}
        asked = [each.tier for kept in after.kept.values() for each in kept.rules if each.rule is rule and each.source]
        lacking = {tier.slug if tier and tier.slug in known else None for tier in asked}
        missed = [tier for tier in wanted if tier not in met]
        if missed and not met:
            missed, lacking = [*known], {*known} if asked else set()
        for lacks in dict.fromkeys((rule.partition_by, ())):
            tiers = [tier or "" for tier in missed if (tier in lacking) is bool(lacks)]
            if tiers:
                yield Blind(rule.slug, lacks, unmatched=tuple(tiers), decides=bool(met), matches=rule.slug in matched)


def _limits_of(rule: RuleRecord, tier: str | None) -> tuple[LimitRecord, ...]:
    return rule.limits.get(tier, rule.limits.get(None, ()))


def unseen(
    rules: RuleSet, lacking: Mapping[tuple[int, str], int], lines: Sequence[int], files: Sequence[str]
) -> Iterator[Blind]:
    """Yield the rules that more than MAX_UNUSABLE of the lines of a file do not let judge.

    lacking: lines by their file and what they lack. lines: of each file.
    """
    for rule in rules.rules:
        needs = {_source(name) for name in rule.partition_by}
        needs |= {"user", "tier"} if rule.depends_on_tier else set()
        needs |= {DURATION} if _holds_leases(rule) else set()
        needs |= {STATUS} if rule.charge_when != "any" else set()
        for name in sorted(needs):
            for file, total in enumerate(lines):
                number = lacking.get((file, name), 0)
                if number > MAX_UNUSABLE * total and not rule.is_off:
                    yield Blind(rule.slug, (name,), number, total, file=files[file] if len(files) > 1 else "")


def _source(name: str) -> str:
    """Return the identity that another one is made of: "ip" for "ip/48"."""
    return "ip" if name.startswith("ip/") else name


def _holds_leases(rule: RuleRecord) -> bool:
    return any(each.limit.holds_leases for several in rule.limits.values() for each in several)


def known_identities(
    held: Collection[str], mapped: Sequence[str], lines: Collection[AccessLogLine], *, has_users: bool
) -> set[str]:
    """Return the identities that some lines have. held: see `LogFormat`. mapped: those of the additional fields."""
    known = {name for place, name in enumerate(mapped) if any(line.more[place] for line in lines)}
    if ("address" in held and any(line.address for line in lines)) or "forwarded" in known:
        known.add("ip")
    known.discard("user")
    return known | {"user"} if has_users else known


def doubts(
    rule_sets: Collection[RuleSet], held: Collection[str], known: Collection[str], proxies: int, *, is_json: bool
) -> list[str]:
    """Return, as text, what the log does not contain, and whether the project lacks the middleware.

    proxies: lines whose address is that of a trusted proxy, if these are nearly all.
    """
    found = []
    rules = [rule for each in rule_sets for rule in each.rules if not rule.is_off]
    if not has_limiter():
        found.append(_("RateLimitMiddleware is not in MIDDLEWARE, so rules apply only to views that ask for them."))
    if "ip" not in known:
        text = _(
            "The log names no addresses. In JSON, name their field with --field ip=NAME. A server behind a Unix socket "
            "sees none: log X-Forwarded-For."
        )
        other = _("The log names no addresses. A server behind a Unix socket sees none: log X-Forwarded-For.")
        found.append(text if is_json else other)
    if proxies:
        text = _(
            "%s lines name an address of TRUSTED_PROXIES in place of the caller. Log X-Forwarded-For, or use the log "
            "of the proxy."
        )
        found.append(text % f"{proxies:,}")
    if not {"user", "api_key", "tier"} & set(known) and any(rule.depends_on_tier for rule in rules):
        found.append(_("The log names no users and no API keys, so every caller has the tier of anonymous callers."))
    slugs = sorted({rule.slug for rule in rules if rule.charge_when != "any"})
    if "status" not in held and slugs:
        found.append(_("The log has no status, so each response counts as a success for %s.") % ", ".join(slugs))
    return found
