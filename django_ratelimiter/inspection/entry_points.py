"""The entry points of a request, and the decision at each: the code of the request path, without charges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django.http.response import HttpResponseBase

from .. import gateway
from ..backend import get_engine
from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision
from ..decorators import Ratelimited
from ..engine.base import Charge, Verdict, Version, as_charged, mark_refunded_if_denied
from ..engine.coroutines import run_sync
from ..identity import meta_name
from ..identity.users import UserByKey
from ..limiter.charges import NO_ENTITLEMENT, InlineRule, LimitRequest, access_entry_for, entitlement_of, limit_request
from ..limiter.io import THREAD, TrialIO
from ..limiter.path import decide
from ..limiter.templates import RuleCharge, owned
from ..middleware import decides_later, exemption
from ..rules import cache
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement, callers_differ
from ..values.access import NOBODY, AccessList, AccessRecord
from .explanation import Bypass
from .question import Question
from .request import BuiltRequest, KnownCaller, assume_values, has_limiter, log_in
from .views import Check, Step, ViewCode, checks_credentials, code_of


@dataclass(slots=True)
class EntryPoint:
    """One call of the limiter."""

    name: str
    request: LimitRequest
    #: Why it tested no rule.
    bypass: Bypass = ""
    access: AccessRecord | None = None
    entitlement: Entitlement = NO_ENTITLEMENT
    #: Why the caller has this tier and multiplier, with the primary keys of assignments.
    reasons: dict[str, int] = field(default_factory=dict)
    #: What it would charge, each with its counter before the call; `None` = not known.
    charges: list[tuple[RuleCharge, Verdict | None]] = field(default_factory=list)


class _EntryPointIO(TrialIO):
    """Keeps what one call of the limiter would charge, and compares the version as a real call does."""

    def __init__(self, entry_point: EntryPoint) -> None:
        super().__init__(THREAD)
        self._point = entry_point
        self.problem = ""

    async def check(
        self,
        charges: Sequence[Charge],
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        engine = get_engine()
        engine.check((), version=version)
        if not charges:
            return ()
        peeked = engine.peek(charges, now_us=now_us)
        trial = getattr(engine, "trial", None)  # a project's own engine may lack it
        tried = trial(charges, now_us) if trial else as_charged(engine.peek(charges, now_us=now_us))
        mark_refunded_if_denied(receipts, tried)
        self._point.charges += zip(owned(charges), peeked, strict=True)  # type: ignore[arg-type]  # from the path
        return tried

    def note_outage(self, charges: Sequence[RuleCharge], error: Exception) -> None:
        self.problem = str(error)
        self._point.charges += [(charge, None) for charge in charges]


@dataclass(slots=True)
class Trial:
    """All entry points in order, and the result for the request."""

    question: Question
    http: BuiltRequest
    caller: KnownCaller
    #: The current ones.
    rules: RuleSet
    entries: AccessList
    #: Why the engine did not answer.
    problem: str = ""
    #: Of the current entry point.
    name: str = "middleware"
    #: Seconds, of all entry points.
    delay: float = 0.0
    entry_points: list[EntryPoint] = field(default_factory=list)
    bypass: Bypass = ""
    #: Scopes that the view would name if it were called.
    unreached: list[str] = field(default_factory=list)
    is_rejected: bool = False
    #: What ended it: raised by an entry point that rejected the request, or by the view's framework before any.
    error: Exception | None = None
    #: The framework's response to the error.
    response: HttpResponseBase | None = None
    #: Names of the view's own code that limits it.
    unexplained: tuple[str, ...] = ()
    #: Of the response if no code of the project handles the request; see `ViewCode`.
    status: int | None = None

    @property
    def decision(self) -> Decision:
        """The decision so far."""
        decision: Decision = getattr(self.http, "ratelimit", NOTHING_TO_DECIDE)
        return decision

    @property
    def coded(self) -> list[RuleRecord]:
        """The rules in code of these entry points, also those that lack the value that they count by."""
        asked = [point.request for point in self.entry_points if not point.bypass]
        found = {id(each.rule): each.rule for request in asked for each in request.inline if not each.rule.is_off}
        return [rule for rule in found.values() if not any(rule.slug == other.slug for other in self.rules.rules)]

    def check(
        self,
        http: Any,
        *,
        scope: str | None = None,
        cost: int | None = None,
        before_authentication: bool = False,
        extra: Sequence[InlineRule] = (),
    ) -> Decision:
        """Decide for an entry point, as `limiter.check` does. The delay is recorded, but not waited for."""
        request = limit_request(http, scope, cost, before_authentication=before_authentication, inline=tuple(extra))
        if not request.earlier.allowed:
            return request.earlier
        assert request.identity is not None
        assume_values(request.identity, self.question, self.caller)
        point = EntryPoint(self.name, request._replace(heeds_access=self.entries is not NOBODY))
        self.entry_points.append(point)
        io = _EntryPointIO(point)
        decision = run_sync(decide(io, point.request))
        self.rules, self.problem = cache.current_rules(), io.problem or self.problem
        self._note_access_and_tier(point)
        if decision.delay:
            self.delay += decision.delay
            decision = self.http.ratelimit = replace(decision, delay=0.0)  # type: ignore[attr-defined]
        return decision

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


def run_trial(question: Question, http: BuiltRequest, caller: KnownCaller, entries: AccessList) -> Trial:
    """Run the entry points in turn, until one rejects the request. Their own code runs; nothing is charged."""
    trial = Trial(question, http, caller, cache.latest_rules(), entries)
    _run(trial)
    return trial


def _ask_gateway(trial: Trial, options: gateway.GatewayOptions) -> None:
    """Run the view that gateways call."""
    http, trial.name = trial.http, "gateway"
    if http.gateway_error is not None:
        trial.bypass, trial.is_rejected = "undecided", True
        trial.response = gateway.error_response(http.gateway_error, options)
        return
    if options.user_header:
        http.META.pop(field := meta_name(options.user_header), None)  # the gateway removes the caller's own field
        if trial.question.user:
            http.META[field] = pk = str(trial.caller.user.pk)
            http.user = UserByKey(pk)  # type: ignore[assignment]
    trial.bypass = gateway.bypass_of(http)
    for spelling in () if trial.bypass else gateway.spellings(http.path_info, options):
        http.path_info = spelling
        trial.is_rejected = trial.is_rejected or not trial.check(http, scope=options.scope).allowed
    if trial.is_rejected:
        trial.response = gateway.rejection(http, trial.decision, options)
    else:
        trial.response = gateway.passing(http, trial.decision)


def _run(trial: Trial) -> None:
    http, caller = trial.http, trial.caller
    if http.gateway is not None:
        _ask_gateway(trial, http.gateway)
        return
    view = http.resolver_match.func if http.resolver_match else None
    later = decides_later(view)
    trial.bypass = _bypass_of_middleware(http)
    log_in(http, caller, before_view=later or checks_credentials(http))
    if not trial.bypass:
        trial.is_rejected = not trial.check(http, before_authentication=later).allowed
    try:
        code = code_of(http)
    except Exception:  # the project's own view, which may need a real request
        code = ViewCode(unexplained=[getattr(view, "__qualname__", str(view))])
    trial.unexplained = tuple(code.unexplained)
    trial.status = None if trial.bypass == "redirect" else code.status
    if code.respond is None:
        log_in(http, caller)
    for step in code.first:
        _ask_step(trial, step)
    log_in(http, caller)
    for step in code.then:
        if _ask_step(trial, step) and trial.error is not None and code.respond is not None:
            trial.response = _respond(code.respond, trial.error)
    if trial.question.scope:
        _ask_step(trial, Step("scope", partial(_ask_for, trial), trial.question.scope))


def _respond(respond: Callable[[Exception], HttpResponseBase], error: Exception) -> HttpResponseBase | None:
    """Return the framework's response; `None` if it has none for this error."""
    try:
        return respond(error)
    except Exception:  # it raises unknown exceptions again
        return None


def _ask_step(trial: Trial, step: Step) -> bool:
    """Run a step of the view's code; returns False if the request was rejected before."""
    if trial.is_rejected or trial.error is not None:
        if step.scope:
            trial.unreached.append(step.scope)
        return False
    trial.name = step.name
    try:
        step.ask(trial.check)
    except Exception as error:  # the view's own code: its exception determines the response
        trial.is_rejected, trial.error = step.is_entry_point, error
    return True


def _ask_for(trial: Trial, check: Check) -> None:
    decision = check(trial.http, scope=trial.question.scope)
    if not decision.allowed:
        raise Ratelimited(decision)


def _bypass_of_middleware(http: BuiltRequest) -> Bypass:
    if not settings.ENABLED:
        return "disabled"
    return exemption(http) if has_limiter() else "no middleware"
