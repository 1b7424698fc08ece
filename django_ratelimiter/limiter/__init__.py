"""The path of a request: who asks, which rules it meets, what the engine says, and the decision.

Every door calls `check`, or `acheck` on an event loop; both go the path `_checking`, which yields each step that may
wait (see `io`). A request is decided in one call to the engine, or in two where a REST framework view knows its
user only after authentication; the second call then gives back what the first spent if it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django.http import HttpRequest

from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, Decision, decide, merge
from ..engine.base import Verdict
from ..exceptions import AccessDenied, EngineUnavailable, RulesUnavailable, StaleRules
from ..rules import cache
from . import charges, events, fallback, metered, refunds, slots
from .charges import Extra, MaxDelay, Question
from .io import Lookup, Path, Spending, ago, go
from .observer import measured
from .refunds import arefund, mark_failed, refund
from .templates import Planned, charges_of

__all__ = ["acheck", "apeek", "arefund", "charge", "check", "mark_failed", "peek", "refund", "slot"]

#: A request whose rules are replaced this often while it is decided is decided by the failure policies.
ATTEMPTS: Final = 5


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
    return go(_checking(request, scope, before_authentication, tuple(extra), cost, "rule"))


async def acheck(
    request: Any,
    *,
    scope: str | None = None,
    cost: int | None = None,
    before_authentication: bool = False,
    extra: Sequence[Extra] = (),
) -> Decision:
    """The same on an event loop, which it does not block, and with any delay."""
    return await ago(_checking(request, scope, before_authentication, tuple(extra), cost, None))


def peek(request: Any, *, scope: str | None = None, cost: int | None = None, extra: Sequence[Extra] = ()) -> Decision:
    """What a request like this one, not yet decided by anybody, would be told now; nothing is spent or kept."""
    return go(charges.peeking(request, scope, cost, tuple(extra), "rule"))


async def apeek(
    request: Any, *, scope: str | None = None, cost: int | None = None, extra: Sequence[Extra] = ()
) -> Decision:
    """The same on an event loop."""
    return await ago(charges.peeking(request, scope, cost, tuple(extra), None))


def charge(request: Any, *, scope: str | None = None, cost: int = 1, extra: Sequence[Extra] = ()) -> metered.Charge:
    """A cost that is known only when the work is done: `with limiter.charge(request) as charge: charge.cost = rows`.

    cost: what must pass for the work to begin. The rest is as for `check`.
    """
    return metered.Charge(request, partial(_checking, request, scope, False, tuple(extra)), cost)


def slot(
    scope: str, *, cost: int | None = None, max_wait: float | None = None, partition: str | None = None
) -> slots.Slot:
    """A turn within the rules of exactly this scope, for work that is no request, such as calls of others' services.

    cost: units to spend, `None` = what each rule says. max_wait: seconds to wait for the turn at most, 0 = not at all,
    `None` = as long as it takes. partition: what splits the counters of rules that are split by anything, such as
    "user:42"; without it they do as their `missing_partition` says. Tiers have no say: nobody asks.
    """
    if not scope:
        raise ValueError("scope: name the scope whose rules shall be met.")

    def asks(max_delay: float | None, *, only_leases: bool = False) -> Path[Decision]:
        question = charges.slot_question(scope, cost, partition, max_delay, only_leases)
        latest = (yield from measured(_deciding(question))) if settings.ENABLED else None
        return latest or NOTHING_TO_DECIDE

    return slots.Slot(asks, refunds.releasing, max_wait)


def _checking(
    request: Any, scope: str | None, before: bool, extra: tuple[Extra, ...], cost: int | None, max_delay: MaxDelay
) -> Path[Decision]:
    http: HttpRequest = getattr(request, "_request", request)
    decision: Decision = getattr(http, "ratelimit", NOTHING_TO_DECIDE)
    if decision.allowed and settings.ENABLED:
        decision = replace(decision, delay=0.0) if decision.delay else decision
        entries = yield charges.ENTRIES
        question = charges.request_question(http, scope, cost, max_delay, before, decision, extra, entries)
        try:
            latest = yield from measured(_deciding(question))
        except AccessDenied as denied:
            latest, decision = None, replace(decision, allowed=False, access=denied.record)
            yield from refunds.refunding(decision.results)
        if latest:
            decision = merge(decision, latest)
            if latest.leases:
                slots.end_with(http, partial(refunds.releasing, latest))
        http.ratelimit = decision  # type: ignore[attr-defined]
        if latest and events.are_due(latest):
            yield from events.decided(http, latest, decision)
    return decision


def _deciding(question: Question) -> Path[Decision | None]:
    """The decision on what is asked, without what was decided earlier; `None` if there is nothing to decide."""
    receipts = refunds.receipts(question.earlier)
    try:
        for _ in range(ATTEMPTS):
            rules = yield charges.RULES
            try:
                planned = yield from charges.planning(rules, question)
                if not planned and not cache.is_version_check_due(rules):
                    return None
                verdicts = yield Spending(charges_of(planned), rules.compared_as, receipts, question.now_us)
            except StaleRules as stale:
                yield Lookup(cache.reload, stale, rules, together=True)
            else:
                if not verdicts or type(verdicts[0]) is Verdict:  # else this process has answered by itself
                    cache.mark_confirmed(rules)
                return decide([*map(Planned.result, planned, verdicts)], rules.version)
        raise RulesUnavailable(f"The rules were replaced {ATTEMPTS} times during one request.")
    except (EngineUnavailable, RulesUnavailable) as error:
        return (yield from fallback.deciding(question, error))
