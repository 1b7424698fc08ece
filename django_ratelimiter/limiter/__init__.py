"""Decide a request: `check`, or `acheck` on an event loop. The steps are in `path`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..decision import NOTHING_TO_DECIDE, Decision
from ..engine.coroutines import run_sync
from .charges import InlineRule, limit_request, slot_request
from .io import LOOP, THREAD
from .metered import MeteredCost
from .path import decide, peek_decision
from .refunds import arefund, mark_failed, refund
from .resets import reset_counters
from .slots import Slot

__all__ = [
    "acheck",
    "apeek",
    "arefund",
    "areset",
    "charge",
    "check",
    "mark_failed",
    "peek",
    "refund",
    "reset",
    "slot",
]


def check(
    request: Any,
    *,
    scope: str | None = None,
    cost: int | None = None,
    before_authentication: bool = False,
    extra: Sequence[InlineRule] = (),
) -> Decision:
    """Decide a request by all rules that match it and are not decided yet. `request.ratelimit` is the merged decision.

    request: Django's or DRF's. scope: also apply the rules of this scope. cost: units to charge;
    `None` = the cost of each rule. before_authentication: leave rules that need the user to a later call.
    extra: rules written in code, decided together with those of the rule set.
    The caller must wait for the decision's `delay`. Leases end with the response.
    """
    asked = limit_request(request, scope, cost, "rule", None, before_authentication, tuple(extra))
    return run_sync(decide(THREAD, asked))


async def acheck(
    request: Any,
    *,
    scope: str | None = None,
    cost: int | None = None,
    before_authentication: bool = False,
    extra: Sequence[InlineRule] = (),
) -> Decision:
    """Decide a request on an event loop without blocking it. A delay can have any length. Arguments as for `check`."""
    asked = limit_request(request, scope, cost, None, None, before_authentication, tuple(extra))
    return await decide(LOOP, asked)


def peek(
    request: Any, *, scope: str | None = None, cost: int | None = None, extra: Sequence[InlineRule] = ()
) -> Decision:
    """Return the decision that a new request like this one would get now. Nothing is charged or stored."""
    asked = limit_request(request, scope, cost, "rule", earlier=NOTHING_TO_DECIDE, inline=tuple(extra))
    return run_sync(peek_decision(THREAD, asked))


async def apeek(
    request: Any, *, scope: str | None = None, cost: int | None = None, extra: Sequence[InlineRule] = ()
) -> Decision:
    """Return the decision of `peek` without blocking the event loop."""
    asked = limit_request(request, scope, cost, None, earlier=NOTHING_TO_DECIDE, inline=tuple(extra))
    return await peek_decision(LOOP, asked)


def charge(request: Any, *, scope: str | None = None, cost: int = 1, extra: Sequence[InlineRule] = ()) -> MeteredCost:
    """Charge a cost that is known only after the work: `with limiter.charge(request, cost=9) as c: c.cost = rows`.

    cost: an estimate, which must be allowed for the block to begin: of requests that come at once, as many are allowed
    as their estimates fit. Other arguments as for `check`.
    """
    return MeteredCost(request, scope, cost, tuple(extra))


def reset(*, rule: str | None = None, **caller: Any) -> list[str]:
    """Reset a caller's counters: the next request has the full quota. Returns the slugs of the rules that have some.

    caller: its values, named as rules count it; a counter is reset if its rule is split by these values alone. `user`:
    a user, or a primary key. `ip`: an address. `api_key`: a key as it was sent, its hash, or what API_KEY_RESOLVER
    returns. `session`: `request.session`, or its key. Others as they are, such as `tenant="acme"`, or
    `**{"field:username": "ann"}`. rule: the slug of one rule; `None` = all. Counters that all callers share stay.
    Raises ValueError if this names no counter, and EngineUnavailable.
    """
    return run_sync(reset_counters(THREAD, rule, caller))


async def areset(*, rule: str | None = None, **caller: Any) -> list[str]:
    """Reset a caller's counters without blocking the event loop; see `reset`."""
    return await reset_counters(LOOP, rule, caller)


def slot(scope: str, *, cost: int | None = None, max_wait: float | None = None, partition: str | None = None) -> Slot:
    """Return a turn within the rules of exactly this scope, for work that is not a request, such as calls to other
    services.

    cost: units to charge; `None` = the cost of each rule. max_wait: the longest time to wait for the turn, in seconds;
    0 = do not wait, `None` = no maximum. partition: the value for rules that are split by anything, such as
    "user:42"; without it, their `missing_partition` applies. Tiers do not apply, because there is no caller.
    """
    if not (scope and isinstance(scope, str)):
        raise ValueError("scope: name the scope whose rules apply.")
    return Slot(slot_request(scope, cost, partition), max_wait)
