"""The counters of a caller, computed from rules and tier as on the request path, and read by one peek."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice
from typing import ClassVar, Final, NamedTuple

from ..backend import get_engine
from ..conf import read_alias
from ..engine.base import Charge, Verdict
from ..engine.usage.rejections import Rejection
from ..exceptions import EngineUnavailable
from ..limiter.templates import RuleTemplate, missing
from ..rules import inline
from ..rules.formatting import limit_in_words
from ..rules.records import LimitRecord, RuleRecord
from ..rules.routes import for_no_view
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.partitions import encode_partition
from ..values.references import reference_of
from .caller import Caller
from .references import everybody, recent


@dataclass(frozen=True)
class Counter:
    """One counter of a caller, in its current state."""

    MEMBERS: ClassVar = (
        *("name", "key", "rule", "mode", "limit", "digest", "capacity", "used", "left", "full_at", "allowed"),
        *("blocked", "blocked_until", "never", "shared", "logged"),
    )

    rule: RuleRecord
    tier: str
    record: LimitRecord
    charge: Charge
    digest: str  # of the caller, as in its key, in logs and reports
    #: Of a request with the charge's cost now; `None` = not known.
    verdict: Verdict | None = None
    #: It counts requests from the address that lack the value that the rule is split by.
    stands_in: bool = False
    #: The caller's tier is not known, so this may not be its limit.
    is_assumed: bool = False
    is_customers: bool = False  # the caller shares it with others of its customer
    logged: bool = False  # it is the counter of the rejection that the reference names

    @property
    def key(self) -> str:
        """The name of the counter in Redis."""
        engine = get_engine()
        stored_name: Callable[[Charge], str] | None = getattr(getattr(engine, "engine", engine), "stored_name", None)
        return stored_name(self.charge) if stored_name else self.charge.key + self.charge.limit.tag

    @property
    def name(self) -> str:
        """The name of the counter for a reset."""
        return f"{self.rule.slug}{self.charge.limit.tag}"

    @property
    def mode(self) -> str:
        return self.rule.mode

    @property
    def limit(self) -> str:
        """The limit in words."""
        return limit_in_words(self.record)

    @property
    def shared(self) -> bool:
        """True if all callers share this counter."""
        return self.rule.is_shared

    @property
    def is_local(self) -> bool:
        """True if each process counts alone, without sync: the sum is not known."""
        return self.charge.sync_interval is not None and self.charge.sync_interval < 0

    @property
    def capacity(self) -> int:
        """The capacity in units."""
        return self.charge.limit.capacity

    @property
    def never(self) -> bool:
        """True if a request costs more than the limit, or lacks a value."""
        return self.charge.cost > self.capacity

    @property
    def left(self) -> int | None:
        return None if self.verdict is None else self.verdict.remaining

    @property
    def percent(self) -> float:
        """How much of the capacity is used, at most 100."""
        return min(100 * (self.used or 0) / self.capacity, 100)

    @property
    def used(self) -> int | None:
        """The used units; `None` = not known."""
        return None if self.verdict is None else max(self.capacity - self.verdict.remaining, 0)

    @property
    def allowed(self) -> bool | None:
        """Whether a request would be allowed, or would be if the rule is in shadow; `None` = not known."""
        return None if self.is_assumed or self.verdict is None else self.verdict.allowed

    @property
    def blocked(self) -> bool | None:
        """Whether an enforced rule rejects a request now; `None` = not known, as of a digest."""
        return None if self.is_assumed else self.allowed is False and self.rule.mode == "enforce"

    @property
    def blocked_until(self) -> datetime | None:
        """When a request would be allowed; `None` = it is, or it never will be."""
        return self._after(self.verdict.retry_after) if self.verdict and self.allowed is False else None

    @property
    def full_at(self) -> datetime | None:
        """When the full quota is back; `None` = it is, or not known."""
        return self._after(self.verdict.reset_after) if self.verdict else None

    def _after(self, seconds: float | None) -> datetime | None:
        """Return the time so long after the verdict; `None` if it is at once, or never."""
        return moment_of(self.verdict.at_us + round(seconds * 1_000_000)) if self.verdict and seconds else None


class Unread(NamedTuple):
    """A rule whose counters need more values of the caller."""

    rule: RuleRecord
    missing: tuple[str, ...]


class Blocking(NamedTuple):
    """The counters that reject a caller now.

    shared: those that all callers share: they block nobody alone. elsewhere: those that reject no request, but only
    code that names a scope that no view has.
    """

    own: Sequence[Counter] = ()
    shared: Sequence[Counter] = ()
    elsewhere: Sequence[Counter] = ()


@dataclass(frozen=True)
class Counters:
    """All of a caller's counters."""

    counters: Sequence[Counter]
    #: The rules with missing values.
    unread: Sequence[Unread] = ()
    #: The rules without a limit for the caller's tier.
    unlimited: Sequence[RuleRecord] = ()
    #: Why the engine did not answer; then the counters have no verdicts.
    problem: str = ""

    @property
    def own(self) -> list[Counter]:
        """The counters that can be reset for this caller alone."""
        return [each for each in self.counters if not (each.shared or each.is_local or each.is_customers)]

    @property
    def blocking(self) -> Blocking:
        """The counters that reject the caller now."""
        blocked = [each for each in self.counters if each.blocked]
        slugs = for_no_view(each.rule for each in blocked)
        in_views = [each for each in blocked if each.rule.slug not in slugs]
        return Blocking(
            [each for each in in_views if not each.shared],
            [each for each in in_views if each.shared],
            [each for each in blocked if each.rule.slug in slugs],
        )

    def of(self, caller: Caller) -> Counters:
        """Return the counters that concern the caller: if only a key is known, its own counters that are in use."""
        if caller.is_everybody:
            return Counters([each for each in self.counters if each.shared], problem=self.problem)
        if caller.is_nobody:
            return Counters((), problem=self.problem)
        if caller.kind != "digest" and not caller.is_unknown_row:
            return self
        shown = [each for each in self.counters if not each.shared and (each.used or self.problem)]
        if self.problem and caller.kind == "digest":  # only the rule that it came with is known to count it
            shown = [each for each in shown if each.rule.slug == caller.rule]
        return Counters(shown, self.unread, self.unlimited, self.problem)


#: Maximum number of the caller's rejections that are returned.
MAX_SHOWN: Final = 20


class CallerRejection(NamedTuple):
    """Requests of a caller that a rule has rejected recently."""

    rule: str  # its name
    at: datetime  # the time of the last one
    since: datetime  # the time of the first one
    times: int
    shadow: bool  # they would have been rejected if the rule were enforced
    is_estimate: bool  # some may have been missed
    tier: str  # the tier of the caller at that time; empty = none
    reference: str  # in the responses
    limit: str  # in words, with its present numbers; empty = the rule does not have it any more
    allowed: bool | None  # its counter would allow such a request now; `None` = not known
    until: datetime | None  # when it would; `None` = it does, it never will, or not known


def rejections_of(caller: Caller, found: Counters, rules: RuleSet) -> list[CallerRejection]:
    """Return the caller's rejections, the latest first; empty if the engine has no list of them.

    Also by a rule that does not limit the caller any more. found: the caller's counters. Raises EngineUnavailable.
    """
    if found.problem:
        return []
    known = {
        (rule.slug, caller.digest_for(rule)): rule for rule in _rules(rules) if rule.is_shared == caller.is_everybody
    }
    rows = sorted((row for row in recent() if (row.rule, row.partition) in known), key=lambda row: -row.at_us)
    # Those of a customer's user with another tier have another limit, and are on the user's own page.
    by_tier = caller.kind == "customer"
    counters = {(each.charge.key + each.charge.limit.tag, by_tier and each.tier): each for each in found.counters}
    shown = [(row, counters.get((row.counter, by_tier and row.tier))) for row in rows[:MAX_SHOWN]]
    return [_rejection(row, known[row.rule, row.partition], counter) for row, counter in shown]


def rejected_by_more(callers: Sequence[Caller], rules: RuleSet) -> list[str]:
    """Return the names of rules that reject one of these callers lately, by more values than are known of it.

    Raises EngineUnavailable.
    """
    several = {rule.slug: rule for rule in _rules(rules) if rule.mode == "enforce" and len(rule.partition_by) > 1}
    lately = [(several[row.rule], row.partition) for row in recent() if row.rule in several and not row.shadow]
    found = [(rule, {*(read_alias(who) or "").split("|")}) for rule, who in lately]
    known = [(each, {encode_partition([pair]) for pair in each.known.items()}) for each in callers]
    return sorted({rule.name for rule, parts in found for each, own in known if each.missing(rule) and parts & own})


def _rejection(row: Rejection, rule: RuleRecord, counter: Counter | None) -> CallerRejection:
    """Return a rejection by a rule. counter: its present state; `None` = not known."""
    return CallerRejection(
        rule.name,
        moment_of(row.at_us),
        moment_of(row.since_us),
        row.times,
        row.shadow,
        row.is_estimate,
        row.tier,
        reference_of(row.rule, row.partition),
        counter.limit if counter else limit_that_rejected(row, rule),
        counter.allowed if counter else None,
        counter.blocked_until if counter else None,
    )


def limit_that_rejected(row: Rejection, rule: RuleRecord) -> str:
    """Return the limit of a recent rejection in words; empty if the rule does not have it any more."""
    limits = rule.limits[row.tier] if row.tier in rule.limits else rule.limits.get(None, ())
    found = [limit for limit in limits if limit.limit.is_counted_in(row.counter)]
    return limit_in_words(found[0]) if found else ""


def moment_of(at_us: int) -> datetime:
    """Return a time of the engine, in microseconds since the Unix epoch."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


def counters_of(caller: Caller, rules: RuleSet, entitlement: Entitlement) -> Counters:
    """Return the caller's counters under all rules that are not off.

    For a digest the tier is not known: the tier of its last recent rejection by the rule is used. Without one, the
    limits are assumed, and it is not known what they decide.
    """
    return read(_unread(caller, rules, entitlement))


def counters_of_members(
    callers: Sequence[Caller], rules: RuleSet, granted: Sequence[Entitlement], to_customer: Entitlement
) -> list[Counters]:
    """Return the counters of each caller of a customer, with their entitlements, in as few calls of the engine.

    Without those that all callers share, and those of the customer, if the caller has the same limits there.
    """
    parts = []
    for caller, entitlement in zip(callers, granted, strict=True):
        found = _unread(caller, rules, entitlement).counters
        own = {"customer"} if entitlement == to_customer else set()
        parts.append([each for each in found if {*each.rule.partition_by} - own])
    together = read(Counters([*chain(*parts)]))
    counters = iter(together.counters)
    return [Counters(list(islice(counters, len(part))), problem=together.problem) for part in parts]


def _unread(caller: Caller, rules: RuleSet, entitlement: Entitlement) -> Counters:
    counters: list[Counter] = []
    unread: list[Unread] = []
    unlimited: list[RuleRecord] = []
    seen, problem = dict[str, str](), ""
    if caller.kind == "digest":
        try:
            seen = {row.rule: row.tier for row in reversed(recent()) if row.partition == caller.digest}
        except EngineUnavailable as error:
            problem = str(error)
    for rule in _rules(rules):
        granted = Entitlement(rules.tiers.get(seen[rule.slug])) if rule.slug in seen else entitlement
        template, digest = RuleTemplate(rule, granted), caller.digest_for(rule)
        if digest is not None:
            is_assumed = caller.kind == "digest" and (
                rule.depends_on_tier if caller.is_everybody else rule.slug not in seen
            )
            is_customers = rule.partition_by == ("customer",) and caller.kind in ("user", "api_key")
            counters += _counters_of(template, digest, caller.stands_in(rule), is_assumed, is_customers)
        if not template.records:
            unlimited.append(rule)
        elif digest is None:
            unread.append(Unread(rule, tuple(caller.missing(rule))))
    return Counters(counters, unread, unlimited, problem)


def shared_counters(rules: Iterable[RuleRecord], known: RuleSet) -> Counters:
    """Return the counters of these rules that all callers share, in one call of the engine for each shard.

    known: the rule set, for its tiers. If several tiers have limits on one counter, the lowest.
    """
    found: dict[str, Counter] = {}
    for rule in rules:
        for tier in (None, *rule.limits):
            template = RuleTemplate(rule, Entitlement(known.tiers.get(tier) if tier else None))
            for counter in _counters_of(template, everybody()):
                if counter.name not in found or counter.capacity < found[counter.name].capacity:
                    found[counter.name] = counter
    return read(Counters([*found.values()]))


def _counters_of(template: RuleTemplate, digest: str, *facts: bool) -> list[Counter]:
    """Return the counters without verdicts. facts: the fields of `Counter` after that."""
    rule, tier = template.rule, str(template.tier or "")
    charges = template.charges(None, None, is_missing=digest == missing())
    return [
        Counter(rule, tier, record, charge.fill(digest), digest, None, *facts)
        for record, charge in zip(template.records, charges, strict=bool(charges))
    ]


#: Maximum number of counters that one call reads: decisions wait for it.
MAX_READ: Final = 1_000


def read(found: Counters) -> Counters:
    """Return these counters with their current verdicts: one call of the engine for each shard and MAX_READ of them."""
    engine = get_engine()
    shard_of: Callable[[Charge], int] = getattr(getattr(engine, "engine", engine), "shard_of", lambda _charge: 0)
    calls: list[dict[str, Counter]] = []
    unfilled: dict[int, list[dict[str, Counter]]] = {}  # of each shard
    for each in (each for each in found.counters if not each.is_local):
        key, some = each.charge.key + each.charge.limit.tag, unfilled.setdefault(shard_of(each.charge), [])
        call = next((call for call in some if key not in call), None)  # it cannot name one twice, which throttles share
        if call is None:
            calls.append(call := {})
            some.append(call)
        call[key] = each
        if len(call) == MAX_READ:
            some.remove(call)
    asked = [[each.charge for each in call.values()] for call in calls]
    try:
        verdicts = [verdict for charges in asked for verdict in engine.peek(charges)]
    except EngineUnavailable as error:
        unread = [replace(each, verdict=None) for each in found.counters]  # earlier verdicts are outdated
        return replace(found, counters=unread, problem=str(error))
    told = dict(zip([id(each) for call in calls for each in call.values()], verdicts, strict=True))
    return replace(found, counters=[replace(each, verdict=told.get(id(each), each.verdict)) for each in found.counters])


def _rules(rules: RuleSet) -> list[RuleRecord]:
    """Return all active rules: those of operators, then those in the code of this process."""
    return [rule for rule in (*rules.rules, *inline.registered()) if rule.mode != "off"]
