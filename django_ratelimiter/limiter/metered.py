"""Costs that are known only after the work."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..decision import NOTHING_TO_DECIDE, Decision, Result
from ..engine.base import Charge
from ..engine.call import Call
from ..engine.coroutines import run_sync
from ..engine.validation import whole_units
from ..exceptions import LimitExceeded
from . import fallback
from .io import IO, LOOP, THREAD
from .refunds import refund_results
from .templates import MaxDelay

logger = logging.getLogger("django_ratelimiter")


#: Decides a charge of this many units.
DecideCost = Callable[[IO, int, MaxDelay], Awaitable[Decision]]


class MeteredCost:
    """The cost of a block of code. Use it once, in `with` or `async with`.

    cost: units, 0 or more; setting another value raises an error. When the block begins, this cost must be allowed,
    else LimitExceeded is raised. When the block ends, the value that it has then is charged, up to the capacities of
    the limits. This is never rejected, because the work is done. An exception in the block does not change it.
    decision: the decision at the beginning. A refund, as by `charge_when`, refunds what was charged at the beginning.
    """

    decision: Decision = NOTHING_TO_DECIDE

    def __init__(self, request: Any, decide: DecideCost, cost: int) -> None:
        self.cost = cost
        self._request = request
        self._decide = decide
        self._charged = self.cost
        self._results: list[Result] = []

    @property
    def cost(self) -> int:
        """Units, 0 or more. Setting another value raises TypeError or ValueError, and keeps the old value."""
        return self._cost

    @cost.setter
    def cost(self, cost: int) -> None:
        self._cost = whole_units(cost)

    def __enter__(self) -> MeteredCost:
        run_sync(self._enter(THREAD, "rule"))
        return self

    def __exit__(self, *_error: object) -> None:
        run_sync(self._exit(THREAD))

    async def __aenter__(self) -> MeteredCost:
        await self._enter(LOOP, None)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await LOOP.finish(self._exit(LOOP))

    async def _enter(self, io: IO, max_delay: MaxDelay) -> None:
        http = getattr(self._request, "_request", self._request)
        known = len(getattr(http, "ratelimit", NOTHING_TO_DECIDE).results)
        self._charged = self.cost
        self.decision = await self._decide(io, self.cost, max_delay)
        if not self.decision.allowed:
            raise LimitExceeded(self.decision)
        self._results = [  # leases do not depend on the cost
            result for result in self.decision.results[known:] if not result.limit.holds_leases
        ]
        if self.decision.delay:
            await io.sleep(self.decision.delay)

    async def _exit(self, io: IO) -> None:
        """Charge the difference. If the cost is lower than at the beginning, refund that and charge the final cost."""
        missing = self.cost - self._charged
        if missing < 0:
            await refund_results(io, self._results)
            missing = self.cost
        if missing > 0:
            await self._spend(io, missing)

    async def _spend(self, io: IO, cost: int) -> None:
        for local in (True, False):
            verdicts = [result.verdict for result in self._results if result.verdict and result.local is local]
            charges = [_more(verdict.charge, cost) for verdict in verdicts]
            try:
                spent = fallback.local.spend(charges) if local else await io.check(Call.of(charges)) if charges else []
            except Exception as error:
                logger.warning("%s units of a request's cost could not be charged: %s", cost, error)
                continue
            for verdict, latest in zip(verdicts, spent, strict=True):  # for the response fields
                verdict.remaining, verdict.reset_after = latest.remaining, latest.reset_after


def _more(charge: Charge, cost: int) -> Charge:
    """Return a charge of this cost for the same counter. It is never rejected, and not counted as a request."""
    return charge._replace(cost=cost, gating=False, usage=None, count_refusals=True, max_delay=None)
