"""Every counter that a caller has, live: computed from rules and tier as on the path, and read by one peek.

For a page, the engine's record of recent refusals is read in the same calls, where the engine can do that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.apps import apps

from ..backend import get_engine
from ..conf import settings
from ..engine.base import Charge, Verdict
from ..engine.usage.refusals import CounterRefusals
from ..exceptions import EngineUnavailable, RulesUnavailable, StaleRules
from ..limiter.templates import RuleTemplate
from ..rules import cache, inline
from ..rules.records import LimitRecord, RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.stored import storage
from ..rules.tiers import Entitlement
from ..values.partitions import may_need_user
from .caller import Caller
from .refusals import peek_with_refusals, tiers_seen


@dataclass(frozen=True)
class Counter:
    """One counter of a caller. verdict: of a request of the rule's cost that came now; `None` = not known.

    digest: the caller in its name. is_shared: all callers have it. stands_in: it counts requests from the address
    which lack what the rule is split by.
    """

    rule: RuleRecord
    tier: str
    record: LimitRecord
    charge: Charge
    digest: str
    verdict: Verdict | None = None
    stands_in: bool = False

    @property
    def name(self) -> str:
        """What forms and the API call this counter: the rule's slug, and what tells its limits apart."""
        return f"{self.rule.slug}{self.charge.limit.tag}"

    @property
    def is_shared(self) -> bool:
        return not self.rule.partition_by

    @property
    def is_local(self) -> bool:
        """Whether each process counts by itself, for good: nobody knows the sum."""
        return self.charge.sync_interval is not None and self.charge.sync_interval < 0

    @property
    def capacity(self) -> int:
        return self.charge.limit.capacity

    @property
    def left(self) -> int | None:
        return None if self.verdict is None else self.verdict.remaining

    @property
    def used(self) -> int | None:
        return None if self.verdict is None else max(self.capacity - self.verdict.remaining, 0)

    @property
    def is_limited(self) -> bool:
        """Whether the rule would now reject a request, or, in shadow, count it as such."""
        return self.verdict is not None and not self.verdict.allowed

    @property
    def is_blocked(self) -> bool:
        """Whether the rule rejects the caller now."""
        return self.is_limited and self.rule.mode == "enforce"

    @property
    def is_blocked_for_good(self) -> bool:
        return self.is_limited and self.verdict is not None and self.verdict.retry_after is None

    @property
    def blocked_until(self) -> datetime | None:
        if self.verdict is None or self.verdict.allowed or self.verdict.retry_after is None:
            return None
        return _moment(self.verdict, self.verdict.retry_after)

    @property
    def full_in(self) -> float | None:
        """Seconds until the full quota is back."""
        return None if self.verdict is None else self.verdict.reset_after

    @property
    def full_at(self) -> datetime | None:
        return None if self.verdict is None else _moment(self.verdict, self.verdict.reset_after)


class Unread(NamedTuple):
    """A rule whose counter cannot be named: what is missing of the caller."""

    rule: RuleRecord
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Counters:
    """All of a caller's counters. unread: the rules that more must be known for. unlimited: those without a limit for
    the caller's tier. problem: why the engine could not be asked; the counters are without verdicts then.
    before_login: by which rules decide where the user is not known yet, as before a REST framework view has checked a
    token; only of rules that have other limits then.
    peeked: what the engine has told in the same calls, with the refusals of all callers; `None` = those are not read.
    """

    counters: Sequence[Counter]
    unread: Sequence[Unread] = ()
    unlimited: Sequence[RuleRecord] = ()
    problem: str = ""
    before_login: Sequence[Counter] = ()
    peeked: CounterRefusals | None = None

    @property
    def own(self) -> list[Counter]:
        """Those that can be reset for this caller alone."""
        return [each for each in self.counters if not each.is_shared and not each.is_local]

    @property
    def blocked(self) -> list[Counter]:
        return [each for each in self.counters if each.is_blocked]

    @property
    def blocked_before_login(self) -> list[Counter]:
        """Those that reject a request of this caller whose token only the view can check, and no other request."""
        return [each for each in self._before_login_alone() if each.is_blocked]

    @property
    def unknown_before_login(self) -> list[Counter]:
        """Those of which nobody can say here whether they would reject such a request."""
        return [each for each in self._before_login_alone() if each.verdict is None and each.rule.mode == "enforce"]

    def _before_login_alone(self) -> list[Counter]:
        slugs = {each.rule.slug for each in self.blocked}
        return [each for each in self.before_login if each.rule.slug not in slugs]

    def before_login_of(self, rule: RuleRecord) -> list[Counter]:
        """Return those by which this rule decides where the user is not known yet; empty = by the same."""
        return [each for each in self.before_login if each.rule is rule]

    def of(self, caller: Caller) -> Counters:
        """Return those that say something of the caller: of whom nothing but a key is known, their own in use."""
        if caller.is_everybody:
            return Counters([each for each in self.counters if each.is_shared], problem=self.problem)
        if caller.is_nobody:
            return Counters((), problem=self.problem)
        if caller.kind != "digest" and not caller.is_unknown_user:
            return self
        shown = [each for each in self.counters if not each.is_shared and (each.used or self.problem)]
        return Counters(shown, self.unread, self.unlimited, self.problem)

    def named(self, names: Iterable[str]) -> list[Counter]:
        """Return the caller's own counters of these names."""
        wanted = set(names)
        return [each for each in self.own if each.name in wanted]


def latest_rules() -> RuleSet:
    """Return the rules in force, read again if another process has changed them: one query of one row."""
    rules, version = cache.current_rules(), storage.committed_version()
    if rules.compared_as is not None and rules.version.order < version.order:
        try:
            return cache.reload(StaleRules(*version), rules)
        except (RulesUnavailable, EngineUnavailable):
            pass  # those that are known are better than none
    return rules


def counters_of(caller: Caller, rules: RuleSet, entitlement: Entitlement, *, with_refusals: bool = False) -> Counters:
    """Return the caller's counters under all rules that are not off, read in one call of the engine for each shard.

    Of a digest the tier is not known: it is that of the last rejection by the rule, if there was one lately.
    with_refusals: read the recent refusals with them, if the engine can read both at once.
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


def _counters(caller: Caller, template: RuleTemplate, digest: str) -> list[Counter]:
    rule, tier = template.rule, str(template.tier or "")
    return [
        Counter(rule, tier, record, charge.fill(digest), digest, stands_in=caller.stands_in(rule))
        for record, charge in zip(template.records, template.charges(None, None), strict=True)
    ]


def _before_login(caller: Caller, template: RuleTemplate, digest: str, rules: RuleSet) -> list[Counter]:
    """Return the counters of anonymous callers, where a rule that needs no user has other limits for this one."""
    if caller.user_id is None or caller.api_key is not None or settings.TIER_RESOLVER is not None:
        return []
    if not apps.is_installed("rest_framework"):  # no view checks a token itself
        return []
    if any(map(may_need_user, template.rule.partition_by)):
        return []
    anonymous = RuleTemplate(template.rule, Entitlement(rules.default_tier("anonymous")))
    return [] if anonymous.records == template.records else _counters(caller, anonymous, digest)


def read(found: Counters, *, with_refusals: bool = False) -> Counters:
    """Return these counters as they stand now. with_refusals: as for `counters_of`."""
    own = {each.name: each for each in found.counters}
    before = [each for each in found.before_login if each.name not in own]
    asked = [each for each in (*found.counters, *before) if not each.is_local]
    charges = [each.charge for each in asked]
    try:
        peeked = peek_with_refusals(charges) if with_refusals else None
        verdicts = peeked.verdicts if peeked else get_engine().peek(charges) if charges else []
    except EngineUnavailable as error:
        return replace(found, problem=str(error))
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
    """Return a counter that has been read already, measured by this limit: one call cannot name it twice.

    Not where it holds a level and not a number of units. "Until" is the latest possible time.
    """
    if same is None or same.verdict is None or "burst" in counter.charge.limit.traits.options:
        return counter
    remaining = max(counter.capacity - (same.capacity - same.verdict.remaining), 0)
    allowed = remaining >= counter.charge.cost
    retry_after = 0.0 if allowed else same.verdict.reset_after
    return replace(counter, verdict=replace(same.verdict, allowed=allowed, remaining=remaining, retry_after=retry_after,
                                            charge=counter.charge))  # fmt: skip


def _rules(rules: RuleSet) -> list[RuleRecord]:
    """Return all rules that count: those of operators, then those in the code of this process."""
    return [rule for rule in (*rules.rules, *inline.registered()) if rule.mode != "off"]


def _moment(verdict: Verdict, seconds: float) -> datetime:
    return datetime.fromtimestamp(verdict.at_us / 1_000_000, UTC) + timedelta(seconds=seconds)
