"""After a decision: leases end with the request, and units are refunded that should not be charged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ..decision import NOTHING_TO_DECIDE, Decision, Result
from ..engine.base import Verdict, leases
from ..engine.call import Call
from ..engine.coroutines import run_sync
from ..logs import logger
from . import fallback
from .io import IO, LOOP, THREAD

#: Releases some leases.
Release = Callable[[IO], Coroutine[Any, Any, None]]

_FAILED: Final = "_ratelimit_failed"
_LEASES: Final = "_ratelimit_leases"

#: Returns the request of this thread or task if its outcome matters to a rule; weakly, as only the middleware ends it.
current_request: Final[ContextVar[Callable[[], HttpRequest | None]]] = ContextVar(
    "django_ratelimiter_current_request", default=lambda: None
)


def refund(decision: Decision) -> None:
    """Refund all charges of a decision, once. Charges that no longer count, such as in past windows, are ignored."""
    run_sync(refund_results(THREAD, decision.results))


async def arefund(decision: Decision) -> None:
    """Refund a decision without blocking the event loop; see `refund`."""
    await refund_results(LOOP, decision.results)


async def refund_unearned(io: IO, request: HttpRequest, response: HttpResponseBase) -> None:
    """Refund, once, the charges of rules whose `charge_when` does not match the response."""
    decision: Decision = getattr(request, "ratelimit", NOTHING_TO_DECIDE)
    other = "success" if response.status_code >= 400 or hasattr(request, _FAILED) else "failure"
    await refund_results(io, [each for each in decision.results if each.rule.charge_when == other])


def receipts(earlier: Decision) -> list[Verdict]:
    """Return the receipts of earlier calls for a request, without charges in this process's memory."""
    return _verdicts(earlier.results, local=False)


async def release(io: IO, decision: Decision) -> None:
    """Release the leases of one call, unless a rejection has released them. If that fails, they expire."""
    held = [result for result in decision.results if result.verdict and leases([result.verdict])]
    await _give_back(io.release, held, "A lease could not be released; it will expire: %s", is_counted=False)


async def refund_results(io: IO, results: Iterable[Result], *, is_counted: bool = True) -> None:
    """Refund these results once, and release leases. If that fails, they stay charged. is_counted: see `fallback`."""
    spent = [result for result in results if result.verdict and result.verdict.spent]
    await _give_back(io.refund, spent, "The charge of a request could not be refunded: %s", is_counted=is_counted)


async def refund_denied(io: IO, earlier: Decision, denial: Call) -> None:
    """Refund a request by this call, which rejects it. If that fails, it stays charged, and counted as allowed."""
    try:
        fallback.local.refund(_verdicts(earlier.results, local=True))
        await io.check(denial, receipts=receipts(earlier))
    except Exception as error:
        logger.warning("The charge of a request could not be refunded: %s", error)


async def _give_back(
    method: Callable[[Sequence[Verdict]], Awaitable[None]], results: Sequence[Result], failed: str, *, is_counted: bool
) -> None:
    ours = _verdicts(results, local=False)
    try:
        if len(ours) < len(results):
            fallback.refund([result for result in results if result.local], is_counted=is_counted)
        if ours:
            await method(ours)
    except Exception as error:
        logger.warning(failed, error)


def _verdicts(results: Iterable[Result], *, local: bool) -> list[Verdict]:
    return [result.verdict for result in results if result.verdict and result.local is local]


def mark_failed(request: Any) -> None:
    """Mark the response to this request as a failure for `charge_when`, whatever its status."""
    setattr(getattr(request, "_request", request), _FAILED, True)


def on_login_failed(request: Any = None, **_signal: Any) -> None:
    """Mark the request of a failed login as a failure: Django's own form answers it with status 200.

    request: `None` if `authenticate` was called without one; then the current request is used.
    """
    with suppress(AttributeError):  # no request, or an object of a project's own authentication
        mark_failed(current_request.get()() if request is None else request)


def on_request_closed(request: HttpRequest, release: Release) -> None:
    """Call `release` once when the response to this request is sent or abandoned.

    Django closes the request with the final response, even if a middleware has replaced the response.
    """
    leases: list[Release] | None = request.__dict__.get(_LEASES)
    if leases is None:
        leases = request.__dict__[_LEASES] = []
        close = request.close

        def close_and_release() -> None:
            try:
                close()
            finally:
                run_sync(release_all(THREAD, request))

        request.close = close_and_release  # type: ignore[method-assign]
    leases.append(release)


async def release_all(io: IO, request: HttpRequest) -> None:
    """Release the leases of the request, even if our task is cancelled."""
    await io.finish(_release(io, request))


async def _release(io: IO, request: HttpRequest) -> None:
    leases: list[Release] = request.__dict__.get(_LEASES, [])
    while leases:
        await leases.pop()(io)
