"""The entry points of a request, and the decision at each: the code of the request path, without charges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.http import HttpRequest

from ..backend import get_engine
from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision
from ..decorators import limits_for
from ..engine.base import Verdict, Version
from ..engine.call import Call
from ..engine.coroutines import run_sync
from ..limiter.charges import NO_ENTITLEMENT, LimitRequest, access_entry_for, entitlement_of, limit_request
from ..limiter.io import THREAD, TrialIO
from ..limiter.path import decide
from ..limiter.templates import RuleCharge, owned
from ..middleware import ASKED_BY_GATEWAYS, decides_later, exemption
from ..rules import cache
from ..rules.routes import chosen_classes, throttle_scope
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement, callers_differ
from ..values.access import NOBODY, AccessList, AccessRecord
from .explanation import Bypass
from .question import Question
from .request import assume_values, has_limiter


@dataclass(slots=True)
class EntryPoint:
    """One call of the limiter."""

    request: LimitRequest
    #: Why it tested no rule.
    bypass: Bypass = ""
    access: AccessRecord | None = None
    entitlement: Entitlement = NO_ENTITLEMENT
    #: Why the caller has this tier and multiplier, with the primary keys of assignments.
    reasons: dict[str, int] = field(default_factory=dict)
    #: What it would charge, each with its counter now; `None` = not known.
    charges: list[tuple[RuleCharge, Verdict | None]] = field(default_factory=list)


class _EntryPointIO(TrialIO):
    """Keeps what one call of the limiter would charge, and compares the version as a real call does."""

    def __init__(self, entry_point: EntryPoint) -> None:
        super().__init__(THREAD)
        self._point = entry_point
        self.problem = ""

    async def check(
        self,
        charges: Call,
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        get_engine().check((), version=version)
        verdicts = await super().check(charges, version, receipts, now_us) if charges else ()
        self._point.charges += zip(owned(charges), verdicts, strict=True)
        return verdicts

    def note_outage(self, charges: Sequence[RuleCharge], error: Exception) -> None:
        self.problem = str(error)
        self._point.charges += [(charge, None) for charge in charges]


@dataclass(slots=True)
class Trial:
    """All entry points in order, and the result for the request."""

    question: Question
    http: HttpRequest
    #: The current ones.
    rules: RuleSet
    entries: AccessList
    #: Why the middleware tests no rule.
    bypass: Bypass = ""
    entry_points: list[EntryPoint] = field(default_factory=list)
    #: Scopes that code would ask for if the request were not rejected before.
    unreached: list[str] = field(default_factory=list)
    #: The limits in the view's code, which are not decided.
    in_code: tuple[str, ...] = ()
    #: Why the engine did not answer.
    problem: str = ""
    #: Seconds, of all entry points.
    delay: float = 0.0

    @property
    def decision(self) -> Decision:
        """The decision so far."""
        decision: Decision = getattr(self.http, "ratelimit", NOTHING_TO_DECIDE)
        return decision

    def ask(self, scope: str | None = None, *, before_authentication: bool = False) -> None:
        """Decide for an entry point, as `limiter.check` does. The delay is recorded, but not waited for."""
        if not self.decision.allowed:
            self.unreached += [scope] if scope else []
            return
        request = limit_request(self.http, scope, before_authentication=before_authentication)
        assert request.identity is not None
        assume_values(request.identity, self.question)
        point = EntryPoint(request._replace(heeds_access=self.entries is not NOBODY))
        self.entry_points.append(point)
        io = _EntryPointIO(point)
        decision = run_sync(decide(io, point.request))
        self.rules, self.problem = cache.current_rules(), io.problem or self.problem
        self._note_access_and_tier(point)
        if decision.delay:
            self.delay += decision.delay
            self.http.ratelimit = replace(decision, delay=0.0)  # type: ignore[attr-defined]

    def _note_access_and_tier(self, point: EntryPoint) -> None:
        """Note why the path tested no rule, or with which tier it did."""
        if not settings.ENABLED:
            point.bypass = "disabled"
        elif not self.rules.enforced:
            point.bypass = "stopped"
        elif access := access_entry_for(self.entries, point.request.identity):
            point.access, point.bypass = access, "denied" if access.action == "deny" else "allowed"
        elif callers_differ(self.rules):
            point.entitlement = entitlement_of(self.rules, point.request, point.reasons.__setitem__)


def run_trial(question: Question, http: HttpRequest, entries: AccessList) -> Trial:
    """Decide at the middleware, then for the scopes that the view names, until one rejects. The view does not run."""
    view: Any = http.resolver_match.func if http.resolver_match else None
    trial, later = Trial(question, http, cache.latest_rules(), entries), decides_later(view)
    trial.bypass = _bypass_of_middleware(http, view)
    if not trial.bypass:
        trial.ask(before_authentication=later)
    scopes, trial.in_code = _limits_in_code(view, http.method or "")
    if later:
        trial.ask(throttle_scope(view))
    for scope in dict.fromkeys((*scopes, question.scope)):
        if scope:
            trial.ask(scope)
    return trial


def _bypass_of_middleware(http: HttpRequest, view: Any) -> Bypass:
    if not settings.ENABLED:
        return "disabled"
    if hasattr(view, ASKED_BY_GATEWAYS):
        return "gateway"
    return exemption(http) if has_limiter() else "no middleware"


def _limits_in_code(view: Any, method: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the scopes that a view names for requests of this method, and the names of its own limits."""
    limits = limits_for(view, method)
    throttles = [each for each in chosen_classes(view, "throttle_classes") if not _asks_rules_alone(each)]
    named = [f"@ratelimit(key={_text(each.key)}, rate={_text(each.rate)})" for each in limits if not each.scope]
    named += map(_text, throttles)
    if getattr(view, "__module__", "") == "ninja.operation":
        named.append("django-ninja")
    return [each.scope for each in limits if each.scope], tuple(dict.fromkeys(named))


def _text(given: Any) -> str:
    """Return a name for a class or a function, and other values as text."""
    return getattr(given, "__qualname__", str(given))


def _asks_rules_alone(throttle: Any) -> bool:
    """Return whether a throttle is our `RuleThrottle`, which has no rate of its own."""
    return getattr(throttle, "decides_rules", False) and not hasattr(throttle, "rate")
