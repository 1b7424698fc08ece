"""All counters of a caller, live: computed from rules and tier as on the request path, and read by one peek.

For a page, the engine's recent rejections are read in the same calls, if the engine supports that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from django.apps import apps

from ..backend import get_engine
from ..conf import settings
from ..exceptions import EngineUnavailable
from ..limiter.templates import RuleTemplate
from ..rules import inline
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.partitions import may_need_user
from .caller import Caller
from .counters import Counter, Counters, Unread
from .references import everybody
from .refusals import peek_with_refusals, tiers_seen


def counters_of(caller: Caller, rules: RuleSet, entitlement: Entitlement, *, with_refusals: bool = False) -> Counters:
    """Return the caller's counters under all rules that are not off, read in one call of the engine for each shard.

    For a digest the tier is not known: the tier of its last recent rejection by the rule is used, if there is one.
    with_refusals: also read the recent rejections, if the engine can read both at once.
    """
    counters: list[Counter] = []
    before: list[Counter] = []
    unread: list[Unread] = []
    unlimited: list[RuleRecord] = []
    peeked = peek_with_refusals([]) if with_refusals and caller.kind == "digest" else None
    seen = tiers_seen(caller.digest, peeked) if caller.kind == "digest" else {}
    for rule in _rules(rules):
        granted = Entitlement(rules.tiers.get(seen[rule.slug])) if rule.slug in seen else entitlement
        template, digest = RuleTemplate(rule, granted), caller.digest_for(rule)
        if digest is not None:
            counters += _counters(caller, template, digest)
            before += _before_login(caller, template, digest, rules)
        if not template.records:
            unlimited.append(rule)
        elif digest is None:
            unread.append(Unread(rule, tuple(caller.missing(rule))))
    found = Counters(counters, unread, unlimited, before_login=before, peeked=peeked)
    return read(found, with_refusals=with_refusals and peeked is None)


def shared_counters(rules: Iterable[RuleRecord], known: RuleSet) -> Counters:
    """Return the counters of these rules that all callers share, in one call of the engine for each shard.

    known: the rule set, for its tiers. If several tiers have limits on one counter, the lowest.
    """
    found: dict[str, Counter] = {}
    for rule in rules:
        for tier in dict.fromkeys((None, *rule.limits)):
            template = RuleTemplate(rule, Entitlement(known.tiers.get(tier) if tier else None))
            for record, charge in zip(template.records, template.charges(None, None), strict=True):
                counter = Counter(rule, tier or "", record, charge.fill(everybody()), everybody())
                if counter.name not in found or counter.capacity < found[counter.name].capacity:
                    found[counter.name] = counter
    return read(Counters([*found.values()]))


def _counters(caller: Caller, template: RuleTemplate, digest: str) -> list[Counter]:
    rule, tier = template.rule, str(template.tier or "")
    return [
        Counter(rule, tier, record, charge.fill(digest), digest, None, caller.stands_in(rule), caller.kind == "digest")
        for record, charge in zip(template.records, template.charges(None, None), strict=True)
    ]


def _before_login(caller: Caller, template: RuleTemplate, digest: str, rules: RuleSet) -> list[Counter]:
    """Return the counters of anonymous callers, if a rule that needs no user has other limits for this caller."""
    if caller.user_id is None or caller.api_key is not None or settings.TIER_RESOLVER is not None:
        return []
    if not apps.is_installed("rest_framework"):  # no view checks a token itself
        return []
    if any(map(may_need_user, template.rule.partition_by)):
        return []
    anonymous = RuleTemplate(template.rule, Entitlement(rules.default_tier("anonymous")))
    return [] if anonymous.records == template.records else _counters(caller, anonymous, digest)


def read(found: Counters, *, with_refusals: bool = False) -> Counters:
    """Return these counters with their current verdicts. with_refusals: as for `counters_of`."""
    own = {each.name: each for each in found.counters}
    before = [each for each in found.before_login if each.name not in own]
    asked = [each for each in (*found.counters, *before) if not each.is_local]
    charges = [each.charge for each in asked]
    try:
        peeked = peek_with_refusals(charges) if with_refusals else None
        verdicts = peeked.verdicts if peeked else get_engine().peek(charges) if charges else []
    except EngineUnavailable as error:
        parts = found.counters, found.before_login
        unread = [[replace(each, verdict=None) for each in part] for part in parts]  # earlier verdicts are outdated
        return replace(found, counters=unread[0], before_login=unread[1], problem=str(error))
    known = {each.name: replace(each, verdict=verdict) for each, verdict in zip(asked, verdicts, strict=True)}
    return replace(
        found,
        peeked=peeked or found.peeked,
        counters=[known.get(each.name, each) for each in found.counters],
        before_login=[
            _measured(each, known.get(each.name)) if each.name in own else known.get(each.name, each)
            for each in found.before_login
        ],
    )


def _measured(counter: Counter, same: Counter | None) -> Counter:
    """Return a counter with this limit, computed from another limit's verdict: one call cannot name a key twice.

    Not for buckets, which hold a level and not a number of units. Its times are the latest possible ones.
    """
    if same is None or same.verdict is None or "burst" in counter.charge.limit.traits.options:
        return counter
    remaining = max(counter.capacity - (same.capacity - same.verdict.remaining), 0)
    allowed = remaining >= counter.charge.cost
    retry_after = 0.0 if allowed else same.verdict.reset_after
    return replace(counter, verdict=replace(same.verdict, allowed=allowed, remaining=remaining, retry_after=retry_after,
                                            charge=counter.charge))  # fmt: skip


def _rules(rules: RuleSet) -> list[RuleRecord]:
    """Return all active rules: those of operators, then those in the code of this process."""
    return [rule for rule in (*rules.rules, *inline.registered()) if rule.mode != "off"]
