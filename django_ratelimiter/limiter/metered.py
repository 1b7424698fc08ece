"""Costs that are known only after the work."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

from ..decision import NOTHING_TO_DECIDE, Decision, Result
from ..engine.base import Charge
from ..engine.call import Call
from ..engine.coroutines import run_sync
from ..engine.limits import whole_units
from ..engine.usage import label_of
from ..exceptions import LimitExceeded
from ..logs import logger
from ..signals import quota_reached
from . import fallback
from .charges import InlineRule, limit_request
from .events import send_reached
from .io import IO, LOOP, THREAD
from .path import decide
from .refunds import on_request_closed, refund_results
from .templates import MaxDelay

Part = TypeVar("Part")


class MeteredCost:
    """The cost of a block of code. Use it once, in `with` or `async with`.

    cost: units, 0 or more; setting another value raises an error. The value at the beginning is an estimate: so much
    must be allowed for the block to begin, else LimitExceeded is raised, and it stays charged until the block ends.
    Then the difference to the value that it has by then is refunded or charged, in one step. This is never rejected,
    because the work is done: what does not fit into the limits is not charged. An exception in the block does not
    change it.
    decision: the decision at the beginning. A refund, as by `charge_when`, refunds at most what was charged then.
    """

    decision: Decision = NOTHING_TO_DECIDE

    def __init__(self, request: Any, scope: str | None, cost: int, extra: tuple[InlineRule, ...]) -> None:
        self.cost = cost
        self._request = getattr(request, "_request", request)
        self._scope, self._extra = scope, extra
        self._charged, self._is_estimate = self.cost, True
        self._results: list[Result] = []
        self._streams, self._is_known = 0, True  # whether each part's cost could be computed
        self._is_settled = False

    @property
    def cost(self) -> int:
        """Units, 0 or more. Setting another value raises TypeError or ValueError, and keeps the old value."""
        return self._cost

    @cost.setter
    def cost(self, cost: int) -> None:
        self._cost, self._is_estimate = whole_units(cost), False

    @overload
    def stream(self, parts: Iterable[Part], cost: Callable[[Part], int]) -> Iterator[Part]: ...
    @overload
    def stream(self, parts: AsyncIterable[Part], cost: Callable[[Part], int]) -> AsyncIterator[Part]: ...
    def stream(self, parts: Any, cost: Callable[[Any], int]) -> Any:
        """Yield these parts, and add the cost of each: `StreamingHttpResponse(charge.stream(parts, cost=len))`.

        The sum replaces the estimate; it is added to a `cost` that was set before. If the stream outlives the block, as
        in a response, it is settled when the response was sent or the caller has left. If the cost of a part cannot be
        computed, that is logged, and at least the estimate is charged. After settling, parts raise RuntimeError.
        """
        if self._is_estimate:
            self.cost = 0
        self._streams += 1
        return (self._apass if hasattr(parts, "__aiter__") else self._pass)(parts, cost)

    def _pass(self, parts: Iterable[Part], cost: Callable[[Part], int]) -> Iterator[Part]:
        try:
            for part in parts:
                self._add(cost, part)
                yield part
        finally:
            self._streams -= 1

    async def _apass(self, parts: AsyncIterable[Part], cost: Callable[[Part], int]) -> AsyncIterator[Part]:
        try:
            async for part in parts:
                self._add(cost, part)
                yield part
        finally:
            self._streams -= 1

    def _add(self, cost: Callable[[Part], int], part: Part) -> None:
        if self._is_settled:
            raise RuntimeError("The charge is settled. Call charge.stream() inside its block and pass the iterator on.")
        if self._is_known:
            try:
                self.cost += cost(part)
            except Exception:
                logger.exception("The cost of a stream is not known: at least its estimate is charged.")
                self.cost, self._is_known = max(self.cost, self._charged), False

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
        known = len(getattr(self._request, "ratelimit", NOTHING_TO_DECIDE).results)
        self._charged = self.cost
        asked = limit_request(self._request, self._scope, self.cost, max_delay, inline=self._extra)
        self.decision = await decide(io, asked)
        if not self.decision.allowed:
            raise LimitExceeded(self.decision)
        self._results = [  # leases do not depend on the cost; a rule in shadow that would reject charges nothing
            result
            for result in self.decision.results[known:]
            if result.verdict and result.verdict.allowed and not result.limit.holds_leases
        ]
        if self.decision.delay:
            await io.sleep(self.decision.delay)

    async def _exit(self, io: IO) -> None:
        if self._streams:
            on_request_closed(self._request, self._settle)
        else:
            await self._settle(io)

    async def _settle(self, io: IO) -> None:
        """Charge or refund the difference to the estimate."""
        self._is_settled = True
        missing = self.cost - self._charged
        if missing > 0:
            await self._spend(io, missing)
            if quota_reached.receivers:
                await send_reached(io, self._request, self._results)
        elif missing < 0:
            await self._refund(io, -missing)

    async def _refund(self, io: IO, cost: int) -> None:
        """Refund these units. The rest stays charged meanwhile, so that nobody else can use it."""
        verdicts = [result.verdict for result in self._results if result.verdict]
        rest = [max(verdict.spent - cost, 0) for verdict in verdicts]
        for verdict, kept in zip(verdicts, rest, strict=True):
            verdict.spent -= kept
        await refund_results(io, self._results)
        for verdict, kept in zip(verdicts, rest, strict=True):
            verdict.spent += kept

    async def _spend(self, io: IO, cost: int) -> None:
        """Charge and count these units; with a later call, if they are charged in this process or not at all."""
        for local in (True, False):
            results = [result for result in self._results if result.verdict and result.local is local]
            verdicts = [result.verdict for result in results if result.verdict]
            charges = [_more(verdict.charge, cost) for verdict in verdicts]
            labels = {label_of(each.charge) for each in fallback.labelled(results)} - {None}
            call = Call.of(charges)
            call.settled = {str(label): cost for label in labels}
            try:
                spent = fallback.local.check(charges) if local else await io.check(call) if charges else []
            except Exception as error:
                logger.warning("%s units of a request's cost could not be charged: %s", cost, error)
                fallback.count_settled(call)
                continue
            if local or call.template.local.alone:
                fallback.count_settled(call)
            for verdict, latest in zip(verdicts, spent, strict=True):  # for the response fields
                verdict.remaining, verdict.reset_after = latest.remaining, latest.reset_after
                verdict.at_us = latest.at_us


def _more(charge: Charge, cost: int) -> Charge:
    """Return a charge of this cost for the same counter. It is never rejected, and not counted as a request."""
    return charge._replace(cost=cost, gating=False, usage=None, count_refusals=True, max_delay=None)
