"""What becomes of what a decision has spent: leases end, and what should not have been charged is given back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..decision import NOTHING_TO_DECIDE, Decision, Result
from ..engine.base import Verdict, leases
from . import fallback
from .io import Asking, Path, ago, go

logger = logging.getLogger("django_ratelimiter")

_FAILED: Final = "_ratelimit_failed"

#: The request that the middleware has the project answer, in this thread or task.
answering: Final[ContextVar[HttpRequest | None]] = ContextVar("django_ratelimiter_answering", default=None)


def refund(decision: Decision) -> None:
    """Give back all that a decision has spent, once. What is past, such as a window that is over, is let go."""
    go(refunding(decision.results))


async def arefund(decision: Decision) -> None:
    """The same on an event loop."""
    await ago(refunding(decision.results))


def settle(request: HttpRequest, response: HttpResponseBase) -> None:
    """Give back what rules have charged that charge only for the other kind of response; once."""
    results = unearned(request, response)
    if results:
        go(refunding(results))


async def asettle(request: HttpRequest, response: HttpResponseBase) -> None:
    """The same on an event loop."""
    results = unearned(request, response)
    if results:
        await ago(refunding(results))


def receipts(earlier: Decision) -> list[Verdict]:
    """What earlier calls for a request spent at the engine; what they spent in this process's memory is none."""
    return _verdicts(earlier.results, local=False) if earlier.results else []


def releasing(latest: Decision) -> Path[None]:
    """End the leases that one call took, unless a refusal has given them back. If it fails they expire."""
    held = [result for result in latest.results if result.verdict and leases([result.verdict])]
    try:
        yield from _giving_back("release", held)
    except Exception as error:
        logger.warning("A lease could not be released; it ends by itself: %s", error)


def refunding(results: Iterable[Result]) -> Path[None]:
    """Give back what these results spent, once; leases end. If it fails it stays spent."""
    try:
        yield from _giving_back("refund", [result for result in results if result.verdict and result.verdict.spent])
    except Exception as error:
        logger.warning("What a request spent could not be given back: %s", error)


def _giving_back(method: str, results: Sequence[Result]) -> Path[None]:
    local, ours = _verdicts(results, local=True), _verdicts(results, local=False)
    if local:
        fallback.refund(local)
    if ours:
        yield Asking(method, ours)


def _verdicts(results: Iterable[Result], *, local: bool) -> list[Verdict]:
    return [result.verdict for result in results if result.verdict and result.local is local]


def mark_failed(request: Any) -> None:
    """Let the response to this request count as a failure for `charge_when`, whatever its status."""
    setattr(getattr(request, "_request", request), _FAILED, True)


def note_failed_login(request: Any = None, **_signal: Any) -> None:
    """A log-in that failed is a failure, though Django's own form answers it with status 200.

    request: `None` where `authenticate` was called without one; it is the one that is being answered.
    """
    with suppress(AttributeError):  # no request, or what a project's own authentication takes for one
        mark_failed(answering.get() if request is None else request)


def unearned(request: HttpRequest, response: HttpResponseBase) -> list[Result]:
    """What was spent by rules that charge only for the other kind of response."""
    decision: Decision = getattr(request, "ratelimit", NOTHING_TO_DECIDE)
    choosy = [result for result in decision.results if result.rule.charge_when != "any"]
    if not choosy:
        return []
    failed = response.status_code >= 400 or hasattr(request, _FAILED)
    other = "success" if failed else "failure"
    return [result for result in choosy if result.rule.charge_when == other and result.verdict and result.verdict.spent]
