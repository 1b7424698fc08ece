"""The path of a request: who asks, which rules it meets, what the engine says, and the decision.

Every door calls `check`, or `acheck` on an event loop; both go the path `_checking`, which yields each step that may
wait (see `waiting`). A request is decided in one call to the engine, or in two where a REST framework view knows its
user only after authentication; the second call then gives back what the first spent if it is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django.http import HttpRequest

from . import holding, notices, planning
from .conf import settings
from .decision import NOTHING_TO_DECIDE, Decision, decide, merge
from .engine.resilience import LocalEngine
from .exceptions import EngineUnavailable, RulesUnavailable, StaleRules
from .planning import Extra, MaxDelay, Planned, Planning, Question
from .rules import cache
from .waiting import Asking, Lookup, Path, ago, go, spending

logger = logging.getLogger("django_ratelimiter")

#: A request whose rules are replaced this often while it is decided is decided by the failure policies.
ATTEMPTS: Final = 5

_local = LocalEngine()


def check(
    request: Any,
    *,
    scope: str | None = None,
    cost: int | None = None,
    before_authentication: bool = False,
    extra: Sequence[Extra] = (),
) -> Decision:
    """Decide a request by all rules that it meets and has not met before; the whole is at `request.ratelimit`.

    request: Django's or the REST framework's. scope: also meet the rules of this scope. cost: units to spend,
    `None` = what each rule says. before_authentication: leave rules that need the user to a later call.
    extra: rules written in code, to be decided together with those of the rule set.
    The caller holds an admitted request for the decision's `delay`; leases end with the response.
    """
    return go(_checking(request, scope, cost, before_authentication, tuple(extra), "rule"))


async def acheck(
    request: Any,
    *,
    scope: str | None = None,
    cost: int | None = None,
    before_authentication: bool = False,
    extra: Sequence[Extra] = (),
) -> Decision:
    """The same on an event loop, which it does not block, and with any delay."""
    return await ago(_checking(request, scope, cost, before_authentication, tuple(extra), None))


def slot(
    scope: str, *, cost: int | None = None, max_wait: float | None = None, partition: str | None = None
) -> holding.Slot:
    """A turn within the rules of exactly this scope, for work that is no request, such as calls of others' services.

    cost: units to spend, `None` = what each rule says. max_wait: seconds to wait for the turn at most, 0 = not at all,
    `None` = as long as it takes. partition: what splits the counters of rules that are split by anything, such as
    "user:42"; without it they do as their `missing_partition` says. Tiers have no say: nobody asks.
    """
    if not scope:
        raise ValueError("scope: name the scope whose rules shall be met.")

    def asks(max_delay: float | None, *, only_leases: bool = False) -> Path[Decision]:
        question = planning.slot_question(scope, cost, partition, max_delay, only_leases)
        latest = (yield from _deciding(question)) if settings.ENABLED else None
        return latest or NOTHING_TO_DECIDE

    return holding.Slot(asks, _releasing, max_wait)


def _checking(
    request: Any,
    scope: str | None,
    cost: int | None,
    before_authentication: bool,
    extra: tuple[Extra, ...],
    max_delay: MaxDelay,
) -> Path[Decision]:
    http: HttpRequest = getattr(request, "_request", request)
    decision: Decision = getattr(http, "ratelimit", NOTHING_TO_DECIDE)
    if decision.allowed and settings.ENABLED:
        decision = replace(decision, delay=0.0) if decision.delay else decision
        question = planning.request_question(http, scope, cost, max_delay, before_authentication, decision, extra)
        latest = yield from _deciding(question)
        if latest:
            decision = merge(decision, latest)
            if latest.leases:
                holding.end_with(http, partial(_releasing, latest))
        http.ratelimit = decision  # type: ignore[attr-defined]
        if latest:
            yield from notices.decided(http, latest, decision)
    return decision


def _deciding(question: Question) -> Path[Decision | None]:
    """The decision on what is asked, without what was decided earlier; `None` if there is nothing to decide."""
    earlier = question.earlier  # what it spent in this process's memory is no receipt for the engine
    receipts = [] if earlier.degraded else [result.verdict for result in earlier.results if result.verdict]
    try:
        for _ in range(ATTEMPTS):
            rules = yield Lookup(cache.current_rules, together=True)
            planned = yield Planning(rules, question)
            if not planned and not cache.is_time_to_ask():
                return None
            charges = [each.charge for each in planned]
            try:
                verdicts = yield spending(
                    charges, version=rules.version, refund_if_denied=receipts, now_us=question.now_us
                )
            except StaleRules as stale:
                yield Lookup(cache.reload, stale, rules, together=True)
            else:
                cache.confirm()
                return decide([*map(Planned.result, planned, verdicts)], rules.version)
        raise RulesUnavailable(f"The rules were replaced {ATTEMPTS} times during one request.")
    except (EngineUnavailable, RulesUnavailable) as error:
        return (yield from _deciding_without_engine(question, error))


def _deciding_without_engine(question: Question, error: Exception) -> Path[Decision | None]:
    """Each rule by its failure policy: local, open or closed. One `closed` rule refuses, and nothing is spent."""
    rules = yield Lookup(cache.renewed_by_age, together=True)
    planned = yield Planning(rules, question)
    if not planned:
        return None
    yield from notices.degraded(_local, error)
    results = [each.result(None) for each in planned]
    local = [index for index, each in enumerate(planned) if each.rule.failure_policy == "local"]
    if not any(result.refuses for result in results):
        verdicts = _local.check([planned[index].charge for index in local], settings.LOCAL_SHARE)
        for index, verdict in zip(local, verdicts, strict=True):
            results[index] = planned[index].result(verdict)
    return decide(results, rules.version, degraded=True)


def _releasing(latest: Decision) -> Path[None]:
    """End the leases that one call took, unless a refusal has given them back. If it fails they expire."""
    try:
        if latest.degraded:
            _local.release(latest.leases)
        else:
            yield Asking("release", latest.leases)
    except Exception as error:
        logger.warning("A lease could not be released; it ends by itself: %s", error)
