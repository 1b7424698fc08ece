"""The path of a request: its identity, the rules that match, the engine's verdicts, the decision. Read it top down.

Every entry point calls `limiter.check` or `limiter.acheck`, which come here with different `io`. A
request is decided in one call to the engine, or in two if a REST framework view knows its user only after
authentication, or if only some rules need its body. If the second call rejects the request, it refunds the charges of
the first. The path never waits for data that this process already has. An engine may decide in this process
(`engine/local/`), and on a cluster it makes a call for each shard.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final
from weakref import ref

from django.core.exceptions import SynchronousOnlyOperation

from ..backend import get_engine
from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision, exempted, merge
from ..engine.base import NEVER, Charge
from ..engine.call import Answer, Call, CallTemplate, ChargeTemplate, is_from_engine
from ..engine.limits import Limit
from ..exceptions import AccessDenied, EngineUnavailable, RulesUnavailable, StaleRules
from ..identity import BodyNotRead, UserNotLoaded
from ..rules import cache
from ..rules.ruleset import RuleSet
from ..signals import quota_reached
from . import events, fallback, refunds
from .charges import LimitRequest, build_charges, counted_as, noted_as
from .io import IO, TrialIO
from .templates import NO_RULES, decision_of

#: Rejects a request, whatever it is, and the engine corrects what earlier calls for it have charged and counted.
DENIED: Final = Call(CallTemplate([ChargeTemplate("", "", Charge("", Limit(1, 1), NEVER))]), ("denied",))

#: If a request's rules are replaced this often while it is decided, the failure policies decide it.
ATTEMPTS: Final = 5
_ATTEMPTS: Final = range(ATTEMPTS)
REPLACED: Final = f"The rules were replaced {ATTEMPTS} times during one request."
UNKNOWN: Final = (
    f"Redis held no version of the rules, {ATTEMPTS} times during one request, although this process published it each "
    "time: its calls reach different servers, or somebody deletes the keys of RATELIMITER['NAMESPACE']."
)


async def decide(io: IO, request: LimitRequest) -> Decision:
    """Return the decision on a request, by all rules that match it, and store it at `request.ratelimit`."""
    http, earlier = request.http, request.earlier
    assert http is not None  # only a slot has none
    if not earlier.allowed or not settings.ENABLED:
        return earlier
    if earlier is not NOTHING_TO_DECIDE and earlier.delay:
        earlier = replace(earlier, delay=0.0)
    try:
        latest = await decide_latest(io, request)
        earlier = replace(earlier, degraded=True) if request.identity.has_failed else earlier  # type: ignore[union-attr]
    except AccessDenied as denied:
        latest, earlier = None, await _denied_by(io, denied, request, earlier)
    except BodyNotRead:
        return await _decide_body_last(io, request)
    if latest is None:
        http.ratelimit = earlier  # type: ignore[attr-defined]
        return earlier
    decision = latest if earlier is NOTHING_TO_DECIDE else merge(earlier, latest)
    http.ratelimit = decision  # type: ignore[attr-defined]
    if (latest.allowed and not latest.has_consequences and not quota_reached.receivers) or not io.is_live:
        return decision
    if latest.has_consequences:
        refunds.current_request.set(ref(http))
        if latest.leases:
            refunds.on_request_closed(http, partial(refunds.release, decision=latest))
    await events.send_events(io, http, request.identity, latest, decision)
    return decision


async def _denied_by(io: IO, denied: AccessDenied, request: LimitRequest, earlier: Decision) -> Decision:
    """Return the decision of an access entry. Earlier charges are refunded, and counted as rejected by another."""
    assert request.identity is not None  # the entry was found by it
    if io.is_live:
        events.log_denied(request.identity, denied.record)
    if earlier.results and io.is_live:
        denial = DENIED.continuing(counted_as(earlier.results, request), noted_as(earlier.results))
        await refunds.refund_denied(io, earlier, denial)
    return replace(earlier, allowed=False, access=denied.record)


async def _decide_body_last(io: IO, request: LimitRequest) -> Decision:
    """Decide the rules that need no body, and if they allow the request, the others. The decisions are merged."""
    first = await decide(io, request._replace(body="leave"))
    if not first.allowed:
        return first
    decision = await decide(io, request._replace(body="read", earlier=first))
    if decision.allowed and first.delay > decision.delay and not decision.is_exempt:  # nobody has waited yet
        decision = request.http.ratelimit = replace(decision, delay=first.delay)  # type: ignore[union-attr]
    return decision


async def decide_latest(io: IO, request: LimitRequest) -> Decision | None:
    """Return the decision of this call alone, without earlier calls; `None` if there is nothing to decide.

    The engine decides by the current rules; without the engine or the rules, the failure policies decide.
    """
    is_observed = events.observer is not None and io.is_live
    began, latest, is_missing = perf_counter() if is_observed else None, None, False
    receipts = () if request.earlier is NOTHING_TO_DECIDE else refunds.receipts(request.earlier)
    now_us = next((each.now_us for each in request.inline if each.now_us is not None), None) if request.inline else None
    try:
        for _ in _ATTEMPTS:
            try:
                try:
                    rules = cache.current_rules()
                    charges = build_charges(rules, cache.access_list(), request)
                except SynchronousOnlyOperation:
                    rules = await io.look_up(cache.current_rules, together=True)
                    charges = await charges_for(io, rules, request)
                if not charges.partitions:
                    await _check_version(io, rules)
                    latest = None if charges is NO_RULES else await _uncharged(io, charges, rules, request)
                    break
                verdicts = await io.check(charges, rules.compared_as, receipts, now_us)
                answer = verdicts if isinstance(verdicts, Answer) else None  # else of a project's engine
                if io.is_live and (is_from_engine(verdicts) if answer is None else not answer.is_local):
                    cache.mark_confirmed(rules)
                version = rules.version
                latest = decision_of(charges, verdicts, version) if answer is None else Decision.of(answer, version)
                break
            except StaleRules as stale:
                is_missing = stale.number is None
                await io.look_up(cache.reload, stale, rules, together=True)
            except AccessDenied as denied:
                await _raise_if_in_force(io, rules, denied)
        else:
            raise RulesUnavailable(UNKNOWN if is_missing else REPLACED)
    except (EngineUnavailable, RulesUnavailable) as error:
        rules = await io.look_up(cache.rules_during_outage, together=True)
        charges = await charges_for(io, rules, request)
        latest = await _uncharged(io, charges, rules, request)
        latest = latest or await fallback.decide_by_policy(io, charges, rules.version, error)
    if settings.EXEMPT is not None and latest is not None and not latest.is_exempt:
        latest = await _unless_exempt(io, latest, request)
    if began is not None and latest is not None:
        events.tell_observer(latest, perf_counter() - began, request.earlier.results)
    return latest


async def _uncharged(io: IO, charges: Call, rules: RuleSet, request: LimitRequest) -> Decision | None:
    """Return the decision on the call of an exempt caller; `None` for another one."""
    owners: Any = () if charges.partitions else charges.template.owners  # type: ignore[attr-defined]
    decision = exempted([owner.result(None) for owner in owners], rules.version)
    return await _unless_exempt(io, decision, request) if owners else None


async def _unless_exempt(io: IO, latest: Decision, request: LimitRequest) -> Decision:
    """Return this decision, or that on an exempt caller, with all charges refunded and the request counted as exempt.

    EXEMPT is asked if the request is rejected, or if it is over a rate in code that leaves this to its view.
    """
    counted, lines = request.earlier.results, [""]
    if latest.is_exempt:
        lines = [each.line for each in await io.look_up(counted_as, latest.results, request)]
    else:
        rates, identity = [each.rule for each in request.inline], request.identity
        is_over = any(each.rule in rates and not each.passes for each in (latest.results if rates else ()))
        if (latest.allowed and not is_over) or identity is None or not await io.look_up(identity.is_exempt):
            return latest
        counted += latest.results
    if io.is_live:
        so_far, engine = counted_as(counted, request), await io.look_up(get_engine)
        await refunds.refund_results(io, counted, is_counted=latest.allowed)
        if hasattr(engine, "count_exempt"):  # else it is of the project
            engine.count_exempt(lines, so_far)
    return exempted(latest.results, latest.version, degraded=latest.degraded)


async def _check_version(io: IO, rules: RuleSet) -> None:
    """Call the engine, at intervals, for the version alone. Raises StaleRules if these rules are not current."""
    if io.is_live and cache.is_version_check_due(rules):
        await io.check(NO_RULES, rules.compared_as)
        cache.mark_confirmed(rules)


async def _raise_if_in_force(io: IO, rules: RuleSet, denied: AccessDenied) -> None:
    """Raise this exception if the rules are still current by which a caller is denied.

    Otherwise a process that denies every caller would never notice that enforcement was stopped.
    """
    try:
        await _check_version(io, rules)
    except StaleRules as stale:
        await io.look_up(cache.reload, stale, rules, together=True)
    else:
        raise denied


async def charges_for(io: IO, rules: RuleSet, request: LimitRequest) -> Call:
    """Return the charges, as `build_charges` does. Waits if the user or other data must be read first."""
    entries = await io.look_up(cache.access_list, together=True)
    try:
        return build_charges(rules, entries, request)
    except UserNotLoaded:
        assert request.identity is not None
        await io.read_user(request.identity)
    except SynchronousOnlyOperation:
        pass
    return await io.look_up(build_charges, rules, entries, request)


async def peek_decision(io: IO, request: LimitRequest) -> Decision:
    """Return the decision that a request would get now; without the engine, that of the failure policies."""
    if not settings.ENABLED:
        return NOTHING_TO_DECIDE
    try:
        latest = await decide_latest(TrialIO(io), request._replace(body="read"))
        return NOTHING_TO_DECIDE if latest is None or latest.is_exempt else latest
    except AccessDenied as denied:
        return replace(NOTHING_TO_DECIDE, allowed=False, access=denied.record)
