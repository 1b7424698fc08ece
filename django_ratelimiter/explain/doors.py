"""The doors that a request passes, and what each would be told: the path of enforcement, without its charges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..backend import get_engine
from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision, merge
from ..decision import decide as decision_from
from ..engine.base import Verdict, as_charged
from ..engine.coroutines import run_sync
from ..exceptions import AccessDenied, EngineUnavailable, RulesUnavailable, StaleRules
from ..limiter.charges import NO_ENTITLEMENT, LimitRequest, access_entry_for, entitlement_of, limit_request
from ..limiter.io import THREAD
from ..limiter.path import ATTEMPTS, charges_for
from ..limiter.templates import RuleCharge
from ..middleware import RateLimitMiddleware, decides_later, exemption
from ..rules import cache
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.access import AccessRecord
from .explanation import Bypass
from .question import Question
from .request import BuiltRequest, KnownCaller, assume_values, has_middleware, log_in

_MIDDLEWARE = f"{RateLimitMiddleware.__module__}.{RateLimitMiddleware.__qualname__}"


@dataclass(slots=True)
class Door:
    """One call of the limiter. peeked: the counters before it. assignment: the one that gives the caller's tier.

    bypass: why it looked at no rule.
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
    """All doors in order, and the decision on the request.

    problem: why the engine could not be asked. unreached: scopes that the view would ask for, were it called.
    """

    rules: RuleSet
    problem: str = ""
    doors: list[Door] = field(default_factory=list)
    decision: Decision = NOTHING_TO_DECIDE
    bypass: Bypass = ""
    unreached: list[str] = field(default_factory=list)


def pass_doors(question: Question, http: BuiltRequest, caller: KnownCaller) -> Passage:
    """Have each door decide in its turn, as long as none rejects the request."""
    passage = _with_rules_in_force()
    view = http.resolver_match.func if http.resolver_match else None
    later = decides_later(view)
    passage.bypass = _bypass_of_middleware(http)
    log_in(http, caller, before_view=later)
    if not passage.bypass:
        _ask(passage, "middleware", limit_request(http, before_authentication=later), question, caller)
    log_in(http, caller)
    for scope in scopes_of(view, question.scope):
        if not passage.decision.allowed:
            passage.unreached.append(scope or "")
            continue
        asked = limit_request(http, scope, earlier=passage.decision)
        _ask(passage, "throttle" if later else "scope", asked, question, caller)
    return passage


def scopes_of(view: Any, typed: str) -> list[str | None]:
    """Return the scopes that the view asks for, each once; `None` = a throttle that names none."""
    found: list[str | None] = [typed] if typed else []
    found += getattr(view, "ratelimit_scopes", ())
    if decides_later(view):
        scope = getattr(view, "initkwargs", {}).get("throttle_scope") or getattr(view.cls, "throttle_scope", None)
        found.append(scope or (None if not found else found[0]))
    return list(dict.fromkeys(found))


def _bypass_of_middleware(http: BuiltRequest) -> Bypass:
    if not settings.ENABLED:
        return "disabled"
    return exemption(http) if has_middleware(_MIDDLEWARE) else "no middleware"


def _with_rules_in_force() -> Passage:
    """Return the rules that a request would be decided by now: older ones are replaced, as by any request."""
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
    return Passage(rules, problem)


def _ask(passage: Passage, name: str, request: LimitRequest, question: Question, caller: KnownCaller) -> None:
    """Let a door ask, and keep what it is told."""
    door, rules, earlier = Door(name, request), passage.rules, passage.decision
    passage.doors.append(door)
    assert request.identity is not None
    assume_values(request.identity, question, caller)
    if not settings.ENABLED:
        door.bypass = "disabled"
        return
    if not rules.enforced:
        door.bypass = "stopped"
        return
    try:
        charges = run_sync(charges_for(THREAD, rules, request))
    except AccessDenied as denied:
        door.bypass, door.access = "denied", denied.record
        _give_back(earlier)
        passage.decision = replace(earlier, allowed=False, access=denied.record)
        return
    door.access = access_entry_for(cache.access_list(), request.identity)
    if door.access is not None:
        door.bypass = "allowed"
        return
    if rules.tiers:
        door.entitlement = entitlement_of(rules, request, lambda number: setattr(door, "assignment", number))
    door.charges = list(charges)
    if door.charges:
        latest = _decided(passage, door)
        if not latest.allowed:
            _give_back(earlier)
        passage.decision = latest if earlier is NOTHING_TO_DECIDE else merge(earlier, latest)


def _decided(passage: Passage, door: Door) -> Decision:
    """Return what the engine would decide; without it, what the rules' failure policies say."""
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
    """Count what earlier calls would have charged as given back: a later one rejects the request."""
    for result in earlier.results:
        if result.verdict is not None:
            result.verdict.mark_refunded()
