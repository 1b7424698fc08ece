"""What a request is charged: the question that a door asks, and a charge for each limit of each rule that it meets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Final, Literal, NamedTuple, cast

from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest

from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision, decide
from ..exceptions import AccessDenied, EngineUnavailable
from ..identity import Identity, UserNotLoaded, digest, identify, partition
from ..rules import cache
from ..rules.records import Facts, RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.access import NOBODY, AccessList, AccessRecord
from ..values.partitions import may_need_user
from .io import Asking, Lookup, Path
from .templates import Planned, filled_in, sheet_of

#: Seconds that an admitted request may be held; `None` = any; "rule" = what each rule grants synchronous workers.
MaxDelay = float | None | Literal["rule"]
#: The rules that a question is about: those that the request meets, of them those of exactly its scope, or all.
Reach = Literal["request", "scope", "all"]


#: Where there are no tiers: nobody's session need be read, then, nor responses vary by cookie.
NO_ENTITLEMENT: Final = Entitlement(None)

#: What a path looks up first: who is let in or kept out, and the rules. By name, for `override_rules` replaces them.
ENTRIES: Final = Lookup(methodcaller("access_list"), cache, together=True)
RULES: Final = Lookup(methodcaller("current_rules"), cache, together=True)


class Only(str):
    """A scope that a door names where no other rules than those of this scope shall be met."""

    __slots__ = ()


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
    reach: which rules of the rule set it is about.
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
    reach: Reach = "request"

    @property
    def now_us(self) -> int | None:
        """The moment to decide at; `None` = the engine's time."""
        for extra in self.extra:
            if extra.now_us is not None:
                return extra.now_us
        return None

    @property
    def is_usual(self) -> bool:
        """Whether the rules alone say what is charged: the first question of a request, with no wishes."""
        return not (self.extra or self.earlier.results or self.before_authentication or self.reach != "request") and (
            self.cost is None and (self.max_delay is None or self.max_delay == "rule")
        )


def request_question(
    request: HttpRequest,
    scope: str | None,
    cost: int | None,
    max_delay: MaxDelay,
    before_authentication: bool,
    earlier: Decision,
    extra: tuple[Extra, ...] = (),
    entries: AccessList = NOBODY,
    reach: Reach = "request",
) -> Question:
    """What a door asks about a request."""
    if isinstance(scope, Only):
        reach = "scope"
    match = request.resolver_match
    route, view_name = (match.route, match.view_name) if match else ("", "")
    # Within the site, as in urls.py: some servers let clients choose the prefix. ASGI's top of a mounted site is empty.
    facts = Facts(request.method or "", request.path_info or "/", route or "", view_name or "", scope or "")
    identity = identify(request)
    return Question(
        facts, identity, cost, max_delay, None, before_authentication, earlier, False, extra, entries, reach
    )


def slot_question(
    scope: str, cost: int | None, partition: str | None, max_delay: float | None, only_leases: bool
) -> Question:
    """What a slot asks: there is no request."""
    return Question(Facts("", "", scope=scope), None, cost, max_delay, partition, only_leases=only_leases)


class Planning(Lookup):
    """The step that plans. error: why it could not be done at once on an event loop, if that was tried."""

    __slots__ = ("_error", "_identity")

    def __init__(self, rules: RuleSet, question: Question, error: SynchronousOnlyOperation | None = None) -> None:
        super().__init__(plan, rules, question)
        self._identity, self._error = question.identity, error

    async def atake(self) -> Sequence[Planned]:
        try:
            if self._error is None:
                return self.take()  # type: ignore[no-any-return]
            raise self._error
        except UserNotLoaded:
            await cast(Identity, self._identity).read_user()
        except SynchronousOnlyOperation:
            pass
        return await super().atake()  # type: ignore[no-any-return]


def planning(rules: RuleSet, question: Question) -> Path[Sequence[Planned]]:
    """The charges, as `plan` makes them. Who is denied might be so by rules that are no longer in force.

    For a process whose every caller is denied would never ask, and not hear that enforcement was stopped.
    """
    try:
        try:
            return plan(rules, question)
        except SynchronousOnlyOperation as error:
            step = Planning(rules, question, error)
        return (yield step)  # type: ignore[no-any-return]
    except AccessDenied:
        if cache.is_version_check_due(rules):
            yield Asking("check", [], version=rules.compared_as)
            cache.mark_confirmed(rules)
        raise


def peeking(
    request: Any,
    scope: str | None,
    cost: int | None,
    extra: tuple[Extra, ...],
    max_delay: MaxDelay,
    reach: Reach = "request",
) -> Path[Decision]:
    """What a request like this would be told now; without the engine, what its rules' failure policies say."""
    if not settings.ENABLED:
        return NOTHING_TO_DECIDE
    http: HttpRequest = getattr(request, "_request", request)
    entries = yield ENTRIES
    question = request_question(http, scope, cost, max_delay, False, NOTHING_TO_DECIDE, extra, entries, reach)
    rules = yield RULES
    try:
        planned = yield Planning(rules, question)
    except AccessDenied as denied:
        return replace(NOTHING_TO_DECIDE, allowed=False, access=denied.record)
    try:
        verdicts = yield Asking("peek", [each.charge for each in planned], now_us=question.now_us)
    except EngineUnavailable:
        return decide([each.result(None) for each in planned], rules.version, degraded=True)
    return decide([*map(Planned.result, planned, verdicts)], rules.version)


def plan(rules: RuleSet, question: Question) -> Sequence[Planned]:
    """The charges: one for each limit of each rule that is met and was not met before.

    Whoever an access entry allows meets no rule. Raises AccessDenied for whom one denies. Nobody meets either while
    enforcement is stopped.
    """
    if not rules.enforced:
        return []
    entries = question.entries
    access = None if entries is NOBODY else access_of(entries, question.identity)
    if access is not None:
        if access.action == "allow":
            return []
        raise AccessDenied(access)
    matched = rules.match(question.facts) if question.reach == "request" else _within_reach(rules, question)
    if question.extra:
        matched = _with_extra(matched, question.extra)
    if not matched:
        return []
    entitlement = _entitlement(rules, question) if rules.tiers else NO_ENTITLEMENT
    sheet, identity = sheet_of(rules, matched, entitlement), question.identity
    if identity is not None and question.is_usual:
        values = [
            identity.value(name) if name else _value(rule, question) if name is None else ""
            for rule, name in sheet.asked
        ]
        return filled_in(sheet, tuple(values), question.max_delay, settings.HASH_KEY)
    decided = {result.rule.slug for result in question.earlier.results}
    planned: list[Planned] = []
    for stencil in sheet.stencils:
        rule = stencil.rule
        if rule.slug not in decided and _meets(rule, question):
            value = _value(rule, question)
            hashed = None if value is None else digest(value)
            planned += stencil.charges(hashed, question.cost, question.max_delay)
    if question.only_leases:
        planned = [each for each in planned if each.charge.limit.holds_leases]
    return planned


def _within_reach(rules: RuleSet, question: Question) -> tuple[RuleRecord, ...]:
    if question.reach == "all":
        return tuple(rule for rule in rules.rules if rule.mode != "off")
    return tuple(rule for rule in rules.match(question.facts) if rule.scope == question.facts.scope)


def _with_extra(matched: Iterable[RuleRecord], extra: Sequence[Extra]) -> tuple[RuleRecord, ...]:
    """All rules by priority, then slug. Of two with one slug the rule set's stays: it has one set of counters."""
    rules = {rule.slug: rule for rule, *_ in reversed(extra) if rule.mode != "off"}
    rules.update((rule.slug, rule) for rule in matched)
    return tuple(sorted(rules.values(), key=lambda rule: (rule.priority, rule.slug)))


def access_of(entries: AccessList, identity: Identity | None) -> AccessRecord | None:
    """The access entry that is about the caller, of whom only that is worked out which entries are about."""
    if identity is None or not entries:
        return None
    return entries.lookup(
        identity.address if "ip" in entries.kinds else None,
        identity.user_id if "user" in entries.kinds else None,
        identity.api_key if "api_key" in entries.kinds else None,
    )


def _entitlement(rules: RuleSet, question: Question) -> Entitlement:
    identity = question.identity
    # Before its credentials are checked a request may be anybody's: no tier is named, or counted.
    if identity is None or (question.before_authentication and identity.awaits_authentication):
        return Entitlement(None)
    return cache.entitlement_for(
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


def _value(rule: RuleRecord, question: Question) -> str | None:
    """What splits the counters of a rule; `None` if it is missing."""
    identity = question.identity
    if identity is None:
        return question.partition if rule.partition_by else ""
    for extra in question.extra:
        if extra.rule is rule:
            value = extra.value
            break
    else:
        value = partition(identity, rule.partition_by)
    if value is None and rule.missing_partition == "ip":
        value = partition(identity, ("ip",))
    return value
