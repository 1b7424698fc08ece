"""Turns within the limits of a scope, for work that is not a request."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from ..conf import settings
from ..decision import NOTHING_TO_DECIDE, UNAVAILABLE_RETRY_SECONDS, Decision, Result
from ..engine.coroutines import run_sync
from ..exceptions import LimitExceeded
from .charges import LimitRequest
from .io import IO, LOOP, THREAD
from .path import decide_latest
from .refunds import release

#: Seconds. A lease may be released long before it expires, so a waiting slot asks again at least this often.
LEASE_POLL_SECONDS: Final = 1.0
#: Seconds. A waiting slot never asks again sooner.
SHORTEST_PAUSE_SECONDS: Final = 0.001

_clock = time.monotonic


def retry_in(decision: Decision) -> float | None:
    """Return the seconds after which to ask again after a rejection; `None` = it will never be allowed."""
    if decision.unavailable or decision.retry_after is None:
        return decision.retry_after
    waits = [SHORTEST_PAUSE_SECONDS]
    for result in decision.rejected_by:
        seconds = (result.verdict and result.verdict.retry_after) or 0.0
        waits.append(min(seconds, LEASE_POLL_SECONDS) if result.limit.holds_leases else seconds)
    return max(waits)


class Slot:
    """A turn within the limits of a scope, for work that is not a request. Use it in `with` or `async with`.

    The block begins when its turn has come. Its leases are released at its end. Raises LimitExceeded if the turn would
    not come within `max_wait` seconds (`None` = no maximum), and at once if the cost is never allowed. It can be
    entered many times, also from several threads or tasks at once.
    """

    def __init__(self, asked: LimitRequest, max_wait: float | None) -> None:
        self._asked, self._max_wait = asked, max_wait
        self._active: deque[Decision] = deque()  # the first to leave releases the oldest, so the rest hold the newest

    async def _decide(self, io: IO, max_delay: float | None, *, only_leases: bool = False) -> Decision:
        if not settings.ENABLED:
            return NOTHING_TO_DECIDE
        latest = await decide_latest(io, self._asked._replace(max_delay=max_delay, only_leases=only_leases))
        return latest or NOTHING_TO_DECIDE

    def ask(self, max_delay: float | None, *, only_leases: bool = False) -> Decision:
        """Decide once. max_delay: seconds that an allowed request may wait; `None` = any."""
        return run_sync(self._decide(THREAD, max_delay, only_leases=only_leases))

    def release(self, decision: Decision) -> None:
        """End the leases of a decision."""
        run_sync(release(THREAD, decision))

    def __enter__(self) -> Decision:
        return run_sync(self._enter(THREAD))

    def __exit__(self, *_error: object) -> None:
        self.release(self._active.popleft())

    async def __aenter__(self) -> Decision:
        return await self._enter(LOOP)

    async def __aexit__(self, *_error: object) -> None:
        await LOOP.finish(release(LOOP, self._active.popleft()))

    async def _enter(self, io: IO) -> Decision:
        deadline = None if self._max_wait is None else _clock() + self._max_wait
        while not (decision := await self._decide(io, _left(deadline))).allowed:
            await io.sleep(_next_try(decision, deadline))
        self._active.append(decision)
        try:
            if decision.delay:
                await io.sleep(decision.delay)
        except BaseException:
            await io.finish(release(io, self._active.popleft()))
            raise
        return decision


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - _clock())


def _next_try(decision: Decision, deadline: float | None) -> float:
    """Return the seconds until the next try. Raises LimitExceeded if it cannot succeed before the deadline."""
    seconds, left = retry_in(decision), _left(deadline)
    if seconds is None or left == 0:
        raise LimitExceeded(decision)
    if left is None:
        return seconds
    if any(_earliest(result) > left for result in decision.rejected_by):
        raise LimitExceeded(decision)
    return min(seconds, left)


def _earliest(result: Result) -> float:
    """Return the seconds until a rejected charge can have its turn at the earliest."""
    verdict = result.verdict
    if verdict is None:
        return UNAVAILABLE_RETRY_SECONDS
    if result.limit.holds_leases:
        return 0.0  # a lease may be released at any time
    if result.limit.holds:
        return verdict.reset_after  # requests in the queue come first, even if it has room
    return verdict.retry_after or 0.0
