"""The entry points of a request, and the decision at each: the code of the request path, without charges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from django.http.response import HttpResponseBase

from .. import gateway, limiter
from ..backend import get_engine
from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision
from ..decorators import Ratelimited
from ..engine.base import Charge, Verdict, Version, as_charged, mark_refunded_if_denied
from ..engine.coroutines import run_sync
from ..identity import meta_name
from ..identity.users import UserByKey
from ..limiter.charges import NO_ENTITLEMENT, LimitRequest, access_entry_for, entitlement_of
from ..limiter.io import THREAD, TrialIO
from ..limiter.path import decide
from ..limiter.templates import RuleCharge, owned
from ..middleware import decides_later, exemption
from ..rules import cache
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.access import NOBODY, AccessList, AccessRecord
from .explanation import Bypass
from .question import Question
from .request import BuiltRequest, KnownCaller, assume_values, has_limiter, log_in
from .views import Step, ViewCode, checks_credentials, code_of


@dataclass(slots=True)
class Door:
    """One call of the limiter. peeked: the counters before it, `None` = not known. assignment: the one that gives the
    caller's tier. bypass: why it tested no rule.
    """

    name: str
    request: LimitRequest
    bypass: Bypass = ""
    access: AccessRecord | None = None
    entitlement: Entitlement = NO_ENTITLEMENT
    assignment: int | None = None
    charges: list[RuleCharge] = field(default_factory=list)
    peeked: list[Verdict | None] = field(default_factory=list)


class _DoorIO(TrialIO):
    """Keeps what one call of the limiter would charge, and compares the version as a real call does."""

    def __init__(self, door: Door) -> None:
        super().__init__(THREAD)
        self._door = door
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
        self._door.charges += owned(charges)  # type: ignore[arg-type]  # they come from the path
        self._door.peeked += peeked
        return tried

    def note_outage(self, charges: Sequence[RuleCharge], error: Exception) -> None:
        self.problem = str(error)
        self._door.charges += charges
        self._door.peeked += [None] * len(charges)


@dataclass(slots=True)
class Passage:
    """All entry points in order, and the result for the request.

    rules: the current ones. entries: the active access entries. problem: why the engine did not answer. door: the name
    of the current entry point. delay: seconds, of all entry points. unreached: scopes that the view would name if it
    were called. error: the exception that ended it: from an entry point that rejected the request, or from the view's
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

    def ask(self, request: LimitRequest) -> Decision:
        """Decide for an entry point, as the limiter does. The delay is recorded, but not waited for."""
        if not request.earlier.allowed:
            return request.earlier
        assert request.identity is not None
        assume_values(request.identity, self.question, self.caller)
        door = Door(self.door, request._replace(heeds_access=self.entries is not NOBODY))
        self.doors.append(door)
        io = _DoorIO(door)
        decision = run_sync(decide(io, door.request))
        self.rules, self.problem = cache.current_rules(), io.problem or self.problem
        self._note_access_and_tier(door)
        if decision.delay:
            self.delay += decision.delay
            decision = self.http.ratelimit = replace(decision, delay=0.0)  # type: ignore[attr-defined]
        return decision

    def _note_access_and_tier(self, door: Door) -> None:
        """Note why the path tested no rule, or with which tier it did."""
        if not settings.ENABLED:
            door.bypass = "disabled"
        elif not self.rules.enforced:
            door.bypass = "stopped"
        elif access := access_entry_for(self.entries, door.request.identity):
            door.access, door.bypass = access, "denied" if access.action == "deny" else "allowed"
        elif self.rules.tiers:
            door.entitlement = entitlement_of(
                self.rules, door.request, lambda number: setattr(door, "assignment", number)
            )


def pass_doors(question: Question, http: BuiltRequest, caller: KnownCaller, entries: AccessList) -> Passage:
    """Run the entry points in turn, until one rejects the request. Their own code runs; nothing is charged."""
    passage = Passage(question, http, caller, cache.latest_rules(), entries)
    before = limiter.trial.set(passage.ask)
    try:
        _pass(passage)
    finally:
        limiter.trial.reset(before)
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
