"""The entry points of a request, and the decision at each: the code of the request path, without charges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from django.http.response import HttpResponseBase

from .. import gateway, limiter
from ..backend import get_engine
from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision, merge
from ..decision import decide as decision_from
from ..decorators import Ratelimited
from ..engine.base import Verdict, as_charged
from ..exceptions import AccessDenied, EngineUnavailable, RulesUnavailable, StaleRules
from ..identity import meta_name
from ..identity.users import UserByKey
from ..limiter.charges import NO_ENTITLEMENT, LimitRequest, access_entry_for, build_charges, entitlement_of
from ..limiter.path import ATTEMPTS, trials
from ..limiter.templates import RuleCharge, owned
from ..middleware import decides_later, exemption
from ..rules import cache
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.access import AccessList, AccessRecord
from .explanation import Bypass
from .question import Question
from .request import BuiltRequest, KnownCaller, assume_values, has_limiter, log_in
from .views import Step, ViewCode, checks_credentials, code_of


@dataclass(slots=True)
class Door:
    """One call of the limiter. peeked: the counters before it. assignment: the one that gives the caller's tier.

    bypass: why it tested no rule.
    """

    name: str
    request: LimitRequest
    bypass: Bypass = ""
    access: AccessRecord | None = None
    entitlement: Entitlement = NO_ENTITLEMENT
    assignment: int | None = None
    charges: list[RuleCharge] = field(default_factory=list)
    peeked: list[Verdict | None] = field(default_factory=list)


@dataclass(slots=True)
class Passage:
    """All entry points in order, and the result for the request.

    entries: the active access entries. problem: why the engine did not answer. door: the name of the current entry
    point. delay: seconds, of all entry points. unreached: scopes that the view would name if it were
    called. error: the exception that ended it: from an entry point that rejected the request, or from the view's
    framework before any entry point. response: the framework's response to it. unexplained: names of the view's own
    code that limits it.
    """

    question: Question
    http: BuiltRequest
    caller: KnownCaller
    rules: RuleSet
    entries: AccessList
    problem: str = ""
    door: str = "middleware"
    delay: float = 0.0
    doors: list[Door] = field(default_factory=list)
    bypass: Bypass = ""
    unreached: list[str] = field(default_factory=list)
    is_rejected: bool = False
    error: Exception | None = None
    response: HttpResponseBase | None = None
    unexplained: tuple[str, ...] = ()

    @property
    def decision(self) -> Decision:
        """The decision so far."""
        decision: Decision = getattr(self.http, "ratelimit", NOTHING_TO_DECIDE)
        return decision

    @property
    def coded(self) -> list[RuleRecord]:
        """The rules in code of these entry points."""
        found = {id(each.rule): each.rule for door in self.doors for each in door.charges}
        return [rule for rule in found.values() if not any(rule is other for other in self.rules.rules)]


def pass_doors(question: Question, http: BuiltRequest, caller: KnownCaller, entries: AccessList) -> Passage:
    """Run the entry points in turn, until one rejects the request. Their own code runs; nothing is charged."""
    rules, problem = _rules_in_force()
    passage = Passage(question, http, caller, rules, entries, problem)
    trials[id(http)] = partial(_ask, passage)
    try:
        _pass(passage)
    finally:
        del trials[id(http)]
    return passage


def _pass_gateway(passage: Passage, options: gateway.GatewayOptions) -> None:
    """Run the view that gateways call."""
    http, passage.door = passage.http, "gateway"
    if http.gateway_error is not None:
        passage.bypass, passage.is_rejected = "undecided", True
        passage.response = gateway.error_response(http.gateway_error, options)
        return
    if options.user_header:
        http.META.pop(field := meta_name(options.user_header), None)  # the gateway removes the client's own field
        if passage.question.user:
            http.META[field] = pk = str(passage.caller.user.pk)
            http.user = UserByKey(pk)  # type: ignore[assignment]
    passage.bypass = gateway.bypass_of(http)
    for spelling in () if passage.bypass else gateway.spellings(http.path_info, options):
        http.path_info = spelling
        passage.is_rejected = passage.is_rejected or not limiter.check(http, scope=options.scope).allowed
    if passage.is_rejected:
        passage.response = gateway.rejection(http, passage.decision, options)
    else:
        passage.response = gateway.passing(http, passage.decision)


def _pass(passage: Passage) -> None:
    http, caller = passage.http, passage.caller
    if http.gateway is not None:
        _pass_gateway(passage, http.gateway)
        return
    view = http.resolver_match.func if http.resolver_match else None
    later = decides_later(view)
    passage.bypass = _bypass_of_middleware(http)
    log_in(http, caller, before_view=later or checks_credentials(http))
    if not passage.bypass:
        passage.is_rejected = not limiter.check(http, before_authentication=later).allowed
    try:
        code = code_of(http)
    except Exception:  # the project's own view, which may need a real request
        code = ViewCode(unexplained=[getattr(view, "__qualname__", str(view))])
    passage.unexplained = tuple(code.unexplained)
    if code.respond is None:
        log_in(http, caller)
    for step in code.first:
        _pass_step(passage, step)
    log_in(http, caller)
    for step in code.then:
        if _pass_step(passage, step) and passage.error is not None and code.respond is not None:
            passage.response = _respond(code.respond, passage.error)
    if passage.question.scope:
        _pass_step(passage, Step("scope", partial(_ask_for, passage), passage.question.scope))


def _respond(respond: Callable[[Exception], HttpResponseBase], error: Exception) -> HttpResponseBase | None:
    """Return the framework's response; `None` if it has none for this error."""
    try:
        return respond(error)
    except Exception:  # it raises unknown exceptions again
        return None


def _pass_step(passage: Passage, step: Step) -> bool:
    """Run a step of the view's code; returns False if the request was rejected before."""
    if passage.is_rejected or passage.error is not None:
        if step.scope:
            passage.unreached.append(step.scope)
        return False
    passage.door = step.name
    try:
        step.ask()
    except Exception as error:  # the view's own code: its exception determines the response
        passage.is_rejected, passage.error = step.is_door, error
    return True


def _ask_for(passage: Passage) -> None:
    decision = limiter.check(passage.http, scope=passage.question.scope)
    if not decision.allowed:
        raise Ratelimited(decision)


def _bypass_of_middleware(http: BuiltRequest) -> Bypass:
    if not settings.ENABLED:
        return "disabled"
    return exemption(http) if has_limiter() else "no middleware"


def _rules_in_force() -> tuple[RuleSet, str]:
    """Return the rules that would decide a request now, reloaded if they are outdated, and a problem."""
    rules, problem = cache.current_rules(), ""
    for _ in range(ATTEMPTS if settings.ENABLED else 0):
        try:
            get_engine().check((), version=rules.compared_as)
            break
        except StaleRules as stale:
            try:
                rules = cache.reload(stale, rules)
            except RulesUnavailable as error:
                problem = str(error)
                break
        except EngineUnavailable as error:
            rules, problem = cache.rules_during_outage(), str(error)
            break
    return rules, problem


def _ask(passage: Passage, request: LimitRequest) -> Decision:
    """Decide for an entry point and store the decision: as in `limiter.path.decide`, without a charge."""
    earlier = request.earlier
    if not earlier.allowed:
        return earlier
    door, rules = Door(passage.door, request), passage.rules
    passage.doors.append(door)
    assert request.identity is not None
    assume_values(request.identity, passage.question, passage.caller)
    if not settings.ENABLED:
        door.bypass = "disabled"
        return earlier
    decision = replace(earlier, delay=0.0) if earlier.delay else earlier
    if not rules.enforced:
        door.bypass = "stopped"
        return _decided_so_far(passage, decision)
    try:
        charges = build_charges(rules, passage.entries, request._replace(body="read"))
    except AccessDenied as denied:
        door.bypass, door.access = "denied", denied.record
        _give_back(earlier)
        return _decided_so_far(passage, replace(decision, allowed=False, access=denied.record))
    door.access = access_entry_for(passage.entries, request.identity)
    if door.access is not None:
        door.bypass = "allowed"
        return _decided_so_far(passage, decision)
    if rules.tiers:
        door.entitlement = entitlement_of(rules, request, lambda number: setattr(door, "assignment", number))
    door.charges = owned(charges)
    if door.charges:
        latest = _decided(passage, door)
        if not latest.allowed:
            _give_back(earlier)
        passage.delay += latest.delay
        decision = latest if earlier is NOTHING_TO_DECIDE else merge(decision, latest)
    return _decided_so_far(passage, decision)


def _decided_so_far(passage: Passage, decision: Decision) -> Decision:
    """Return the decision so far, stored on the request. The delay is recorded, but not waited for."""
    decision = replace(decision, delay=0.0) if decision.delay else decision
    passage.http.ratelimit = decision  # type: ignore[attr-defined]
    return decision


def _decided(passage: Passage, door: Door) -> Decision:
    """Return what the engine would decide; without it, the rules' failure policies."""
    charges, now_us = [each.charge for each in door.charges], door.request.now_us
    if not passage.problem:
        try:
            engine = get_engine()
            door.peeked = [*engine.peek(charges, now_us=now_us)]
            trial = getattr(engine, "trial", None)  # a project's own engine may lack it
            tried = trial(charges, now_us) if trial else as_charged(engine.peek(charges, now_us=now_us))
        except EngineUnavailable as error:
            passage.problem = str(error)
        else:
            results = [each.result(verdict) for each, verdict in zip(door.charges, tried, strict=True)]
            return decision_from(results, passage.rules.version)
    door.peeked = [None] * len(charges)
    return decision_from([each.result(None) for each in door.charges], passage.rules.version, degraded=True)


def _give_back(earlier: Decision) -> None:
    """Count the charges of earlier calls as refunded, because a later call rejects the request."""
    for result in earlier.results:
        if result.verdict is not None:
            result.verdict.mark_refunded()
