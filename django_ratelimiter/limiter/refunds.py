"""What becomes of what a decision has spent: leases end, and what should not have been charged is given back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..decision import NOTHING_TO_DECIDE, Decision, Result
from ..engine.base import Verdict, leases
from ..engine.coroutines import run_sync
from . import fallback
from .io import IO, LOOP, THREAD

logger = logging.getLogger("django_ratelimiter")

_FAILED: Final = "_ratelimit_failed"

#: The request that the middleware has the project answer, in this thread or task.
current_request: Final[ContextVar[HttpRequest | None]] = ContextVar("django_ratelimiter_current_request", default=None)


def refund(decision: Decision) -> None:
    """Refund all charges of a decision, once. Charges that no longer count, such as in past windows, are ignored."""
    run_sync(refund_results(THREAD, decision.results))


async def arefund(decision: Decision) -> None:
    """Refund a decision without blocking the event loop; see `refund`."""
    await refund_results(LOOP, decision.results)


def refund_unearned(request: HttpRequest, response: HttpResponseBase) -> None:
    """Give back what rules have charged that charge only for the other kind of response; once."""
    results = unearned_results(request, response)
    if results:
        run_sync(refund_results(THREAD, results))


async def arefund_unearned(request: HttpRequest, response: HttpResponseBase) -> None:
    """Give it back without blocking the event loop."""
    results = unearned_results(request, response)
    if results:
        await refund_results(LOOP, results)


def receipts(earlier: Decision) -> list[Verdict]:
    """What earlier calls for a request spent at the engine; what they spent in this process's memory is none."""
    return _verdicts(earlier.results, local=False) if earlier.results else []


async def release(io: IO, decision: Decision) -> None:
    """End the leases that one call took, unless a refusal has given them back. If it fails they expire."""
    held = [result for result in decision.results if result.verdict and leases([result.verdict])]
    try:
        await _give_back(io.release, held)
    except Exception as error:
        logger.warning("A lease could not be released; it will expire: %s", error)


async def refund_results(io: IO, results: Iterable[Result]) -> None:
    """Give back what these results spent, once; leases end. If it fails it stays spent."""
    try:
        await _give_back(io.refund, [result for result in results if result.verdict and result.verdict.spent])
    except Exception as error:
        logger.warning("The charge of a request could not be refunded: %s", error)


async def _give_back(method: Callable[[Sequence[Verdict]], Awaitable[None]], results: Sequence[Result]) -> None:
    local, ours = _verdicts(results, local=True), _verdicts(results, local=False)
    if local:
        fallback.refund(local)
    if ours:
        await method(ours)


def _verdicts(results: Iterable[Result], *, local: bool) -> list[Verdict]:
    return [result.verdict for result in results if result.verdict and result.local is local]


def mark_failed(request: Any) -> None:
    """Mark the response to this request as a failure for `charge_when`, whatever its status."""
    setattr(getattr(request, "_request", request), _FAILED, True)


def on_login_failed(request: Any = None, **_signal: Any) -> None:
    """A log-in that failed is a failure, though Django's own form answers it with status 200.

    request: `None` where `authenticate` was called without one; it is the one that is being answered.
    """
    with suppress(AttributeError):  # no request, or what a project's own authentication takes for one
        mark_failed(current_request.get() if request is None else request)


def unearned_results(request: HttpRequest, response: HttpResponseBase) -> list[Result]:
    """Return the charges of rules that charge only for the other kind of response."""
    decision: Decision = getattr(request, "ratelimit", NOTHING_TO_DECIDE)
    choosy = [result for result in decision.results if result.rule.charge_when != "any"]
    if not choosy:
        return []
    failed = response.status_code >= 400 or hasattr(request, _FAILED)
    other = "success" if failed else "failure"
    return [result for result in choosy if result.rule.charge_when == other and result.verdict and result.verdict.spent]
