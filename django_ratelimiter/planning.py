"""What a request is charged: the question that a door asks, and a charge for each limit of each rule that it meets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, cast

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest

from .conf import settings
from .decision import NOTHING_TO_DECIDE, Decision, Result, decide
from .engine.base import Charge, Verdict
from .engine.limits import EXACT, Algorithm
from .exceptions import AccessDenied, EngineUnavailable
from .identity import Identity, UserUnread, digest, identify, partition
from .rules import cache
from .rules.access import NOBODY, AccessList, AccessRecord
from .rules.partitions import may_need_user
from .rules.ruleset import Facts, RuleRecord, RuleSet, TierRecord
from .rules.tiers import Standing
from .waiting import Asking, Lookup, Path

#: Seconds that an admitted request may be held; `None` = any; "rule" = what each rule grants synchronous workers.
MaxDelay = float | None | Literal["rule"]

#: More than any limit holds: refused for good, and counted.
NEVER: Final = EXACT


class Extra(NamedTuple):
    """A rule written in code, and what splits its counters for this request; `None` = the request lacks it.

    now_us: the moment to decide at, in microseconds since the Unix epoch, for a clock of one's own; `None` = the
    engine's time.
    """

    rule: RuleRecord
    value: str | None
    now_us: int | None = None


class Question(NamedTuple):
    """What a door or a slot asks.

    identity: `None` for a slot, which meets the rules of its scope only, and splits them by `partition`.
    cost: units; `None` = each rule's own. before_authentication: leave rules that need the user to a later call.
    earlier: what other doors decided for this request. only_leases: all else has been charged in an earlier call.
    extra: rules to meet beside those of the rule set. entries: who is denied, or allowed past all rules.
    """

    facts: Facts
    identity: Identity | None
    cost: int | None
    max_delay: MaxDelay
    partition: str | None = None
    before_authentication: bool = False
    earlier: Decision = NOTHING_TO_DECIDE
    only_leases: bool = False
    extra: tuple[Extra, ...] = ()
    entries: AccessList = NOBODY

    @property
    def now_us(self) -> int | None:
        """The moment to decide at; `None` = the engine's time."""
        return next((extra.now_us for extra in self.extra if extra.now_us is not None), None)


class Planned(NamedTuple):
    """A charge, and the rule and tier that it is for."""

    rule: RuleRecord
    tier: TierRecord | None
    charge: Charge

    def result(self, verdict: Verdict | None) -> Result:
        """The result of this charge."""
        return Result(self.rule, self.tier, self.charge.limit, verdict, self.rule.mode)


def request_question(
    request: HttpRequest,
    scope: str | None,
    cost: int | None,
    max_delay: MaxDelay,
    before_authentication: bool,
    earlier: Decision,
    extra: tuple[Extra, ...] = (),
    entries: AccessList = NOBODY,
) -> Question:
    """What a door asks about a request."""
    match = request.resolver_match
    route, view_name = (match.route, match.view_name) if match else ("", "")
    facts = Facts(request.method or "", request.path, route or "", view_name or "", scope or "")
    return Question(
        facts,
        identify(request),
        cost,
        max_delay,
        before_authentication=before_authentication,
        earlier=earlier,
        extra=extra,
        entries=entries,
    )


def slot_question(
    scope: str, cost: int | None, partition: str | None, max_delay: float | None, only_leases: bool
) -> Question:
    """What a slot asks: there is no request."""
    return Question(Facts("", "", scope=scope), None, cost, max_delay, partition, only_leases=only_leases)


class Planning(Lookup):
    """The step that plans."""

    __slots__ = ("_identity",)

    def __init__(self, rules: RuleSet, question: Question) -> None:
        super().__init__(plan, rules, question)
        self._identity = question.identity

    async def atake(self) -> list[Planned]:
        try:
            return self.take()  # type: ignore[no-any-return]
        except UserUnread:
            await cast(Identity, self._identity).read_user()
        except SynchronousOnlyOperation:
            pass
        return await super().atake()  # type: ignore[no-any-return]


def planning(rules: RuleSet, question: Question) -> Path[list[Planned]]:
    """The charges, as `plan` makes them. Who is denied might be so by rules that are no longer in force.

    For a process whose every caller is denied would never ask, and not hear that enforcement was stopped.
    """
    try:
        return (yield Planning(rules, question))  # type: ignore[no-any-return]
    except AccessDenied:
        if cache.is_time_to_ask():
            yield Asking("check", [], version=rules.version)
            cache.confirm()
        raise


def peeking(
    request: Any, scope: str | None, cost: int | None, extra: tuple[Extra, ...], max_delay: MaxDelay
) -> Path[Decision]:
    """What a request like this would be told now; without the engine, what its rules' failure policies say."""
    if not settings.ENABLED:
        return NOTHING_TO_DECIDE
    http: HttpRequest = getattr(request, "_request", request)
    entries = yield Lookup(cache.access_list, together=True)
    question = request_question(http, scope, cost, max_delay, False, NOTHING_TO_DECIDE, extra, entries)
    rules = yield Lookup(cache.current_rules, together=True)
    try:
        planned = yield Planning(rules, question)
    except AccessDenied as denied:
        return replace(NOTHING_TO_DECIDE, allowed=False, access=denied.record)
    try:
        verdicts = yield Asking("peek", [each.charge for each in planned], now_us=question.now_us)
    except EngineUnavailable:
        return decide([each.result(None) for each in planned], rules.version, degraded=True)
    return decide([*map(Planned.result, planned, verdicts)], rules.version)


def plan(rules: RuleSet, question: Question) -> list[Planned]:
    """The charges: one for each limit of each rule that is met and was not met before.

    Whoever an access entry allows meets no rule. Raises AccessDenied for whom one denies. Nobody meets either while
    enforcement is stopped.
    """
    if not rules.enforced:
        return []
    access = _access(question.entries, question.identity)
    if access is not None:
        if access.action == "allow":
            return []
        raise AccessDenied(access)
    matched = rules.match(question.facts)
    if question.extra:
        matched = _with_extra(matched, question.extra)
    if not matched:
        return []
    standing = _standing(rules, question)
    decided = {result.rule.slug for result in question.earlier.results}
    return [
        Planned(rule, standing.tier, charge)
        for rule in matched
        if rule.slug not in decided and _meets(rule, question)
        for charge in _charges(rule, standing, question)
    ]


def _with_extra(matched: Iterable[RuleRecord], extra: Sequence[Extra]) -> tuple[RuleRecord, ...]:
    """All rules by priority, then slug. Of two with one slug the rule set's stays: it has one set of counters."""
    rules = {rule.slug: rule for rule, *_ in reversed(extra) if rule.mode != "off"}
    rules.update((rule.slug, rule) for rule in matched)
    return tuple(sorted(rules.values(), key=lambda rule: (rule.priority, rule.slug)))


def _access(entries: AccessList, identity: Identity | None) -> AccessRecord | None:
    """The access entry that is about the caller, of whom only that is worked out which entries are about."""
    if identity is None or not entries:
        return None
    return entries.lookup(
        identity.address if "ip" in entries.kinds else None,
        identity.user_id if "user" in entries.kinds else None,
        identity.api_key if "api_key" in entries.kinds else None,
    )


def _standing(rules: RuleSet, question: Question) -> Standing:
    identity = question.identity
    # Before its credentials are checked a request may be anybody's: no tier is named, or counted.
    if identity is None or (question.before_authentication and identity.awaits_authentication):
        return Standing(None)
    return cache.standing_for(
        rules, identity.user_id, identity.api_key, partial(partition, identity), identity.resolve_tier
    )


def _meets(rule: RuleRecord, question: Question) -> bool:
    if question.identity is None:
        return rule.scope == question.facts.scope
    return not (question.before_authentication and _needs_user(rule, question))


def _needs_user(rule: RuleRecord, question: Question) -> bool:
    """Whether a rule must wait for authentication: for its partition, or for a tier that no API key settles."""
    if "user" in rule.partition_by or (rule.depends_on_tier and cast(Identity, question.identity).api_key is None):
        return True
    coded = any(extra.rule is rule for extra in question.extra)  # brings its value with it
    return not coded and any(map(may_need_user, rule.partition_by))


def _charges(rule: RuleRecord, standing: Standing, question: Question) -> Iterator[Charge]:
    records = rule.limits_for(*standing)
    if question.only_leases:
        records = tuple(record for record in records if record.limit.algorithm == Algorithm.CONCURRENCY)
    if not records:
        return
    value, cost = _value(rule, question), rule.cost if question.cost is None else question.cost
    if value is None:
        if rule.missing_partition != "deny":
            return
        value, cost = "missing", NEVER
    key = f"{rule.slug}:{digest(value)}"
    for limit, max_delay, generation in records:
        yield Charge(
            f"{key}:{generation}" if generation else key,
            limit,
            cost,
            gating=rule.mode == "enforce",
            usage=f"{rule.slug}|{standing.tier or ''}",
            count_refusals=rule.count_refusals,
            max_delay=max_delay if question.max_delay == "rule" else question.max_delay,
        )


def _value(rule: RuleRecord, question: Question) -> str | None:
    """What splits the counters of a rule; `None` if it is missing."""
    identity = question.identity
    if identity is None:
        return question.partition if rule.partition_by else ""
    coded = [extra.value for extra in question.extra if extra.rule is rule]
    value = coded[0] if coded else partition(identity, rule.partition_by)
    if value is None and rule.missing_partition == "ip":
        value = partition(identity, ("ip",))
    return value
