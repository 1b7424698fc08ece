"""Assertions about limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from ..decision import Decision
from ..exceptions import LimitExceeded

_REJECTED: Final = (429, 503)


def assert_limited(ask: Any, *args: Any, after: int, by: str | None = None, **kwargs: Any) -> Any:
    """Check that `after` requests are allowed and the next one is rejected, and return the rejection.

    ask: a test client, which is called with `args` and `kwargs`; or any callable, called with them, that returns a
    response or a Decision, or raises LimitExceeded, whose decision is then returned. Rejected means 429 or 503.
    by: the slug of a rule that must be among the rejecting rules; works for a client or a decision.
    """
    call = partial(_asking(ask), *args, **kwargs)
    for number in range(after):
        _check_admitted(_answer(call), number, after)
    return _checked_rejection(_answer(call), after, by)


async def aassert_limited(ask: Any, *args: Any, after: int, by: str | None = None, **kwargs: Any) -> Any:
    """Like `assert_limited`, for an asynchronous client or callable."""
    call = partial(_asking(ask), *args, **kwargs)
    for number in range(after):
        _check_admitted(await _aanswer(call), number, after)
    return _checked_rejection(await _aanswer(call), after, by)


def _asking(ask: Any) -> Callable[..., Any]:
    get: Callable[..., Any] = getattr(ask, "get", ask)
    return get


def _answer(call: Callable[[], Any]) -> Any:
    try:
        answer = call()
    except LimitExceeded as error:
        return error.decision
    if isinstance(answer, Awaitable):
        close = getattr(answer, "close", None)
        if close:
            close()
        raise TypeError("The client or function is asynchronous; await aassert_limited(...) instead.")
    return answer


async def _aanswer(call: Callable[[], Any]) -> Any:
    try:
        answer = call()
        return await answer if isinstance(answer, Awaitable) else answer
    except LimitExceeded as error:
        return error.decision


def _check_admitted(answer: Any, number: int, after: int) -> None:
    if _is_rejected(answer):
        names = ", ".join(_rejecting(answer)) or "an unknown rule"
        raise AssertionError(f"Request {number + 1} of {after} was rejected, by {names}; it should be allowed.")


def _checked_rejection(answer: Any, after: int, by: str | None) -> Any:
    if not _is_rejected(answer):
        raise AssertionError(f"Request {after + 1} was allowed; it should be rejected after {after}.")
    if by is not None and by not in _rejecting(answer):
        raise AssertionError(f"The request was rejected by {', '.join(_rejecting(answer)) or 'no rule'}, not by {by}.")
    return answer


def _is_rejected(answer: Any) -> bool:
    return not answer.allowed if isinstance(answer, Decision) else answer.status_code in _REJECTED


def _rejecting(answer: Any) -> list[str]:
    """Return the slugs of the rules that reject."""
    decision = answer
    if not isinstance(answer, Decision):
        request = getattr(answer, "wsgi_request", None) or getattr(answer, "asgi_request", None)
        decision = getattr(request, "ratelimit", None)
    return list(dict.fromkeys(result.rule.slug for result in decision.rejected_by)) if decision else []
