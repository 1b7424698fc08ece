"""Turns within the limits of a scope, for work that is no request."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from ..decision import UNAVAILABLE_RETRY_SECONDS, Decision, Result
from ..engine.coroutines import run_sync
from ..exceptions import LimitExceeded
from .io import IO, LOOP, THREAD
from .refunds import release

#: A lease may be released long before it expires, so who waits for one asks again after so many seconds at most.
LEASE_POLL_SECONDS: Final = 1.0
#: Nobody asks again sooner than this.
SHORTEST_PAUSE_SECONDS: Final = 0.001

_clock = time.monotonic


def retry_in(decision: Decision) -> float | None:
    """Seconds after which a refused request should ask again; `None` = it will never pass."""
    if decision.unavailable or decision.retry_after is None:
        return decision.retry_after
    return max(_pause(result) for result in decision.refused_by)


def _pause(result: Result) -> float:
    seconds = (result.verdict and result.verdict.retry_after) or 0.0
    if result.limit.holds_leases:
        seconds = min(seconds, LEASE_POLL_SECONDS)
    return max(seconds, SHORTEST_PAUSE_SECONDS)


class Decide(Protocol):
    """Decides once. max_delay: seconds that an allowed request may wait; `None` = any."""

    def __call__(
        self, io: IO, max_delay: float | None, *, only_leases: bool = False
    ) -> Coroutine[Any, Any, Decision]: ...


class Slot:
    """A turn within the limits of a scope, for work that is not a request. Use it in `with` or `async with`.

    The block begins when its turn has come. Its leases are released at its end. Raises LimitExceeded if the turn would
    not come within `max_wait` seconds (`None` = no maximum), and at once if the cost is never allowed. It can be
    entered many times, also from several threads or tasks at once.
    """

    def __init__(self, decide: Decide, max_wait: float | None) -> None:
        self._decide = decide
        self._max_wait = max_wait
        self._active: deque[Decision] = deque()  # whoever leaves ends the oldest, so who stays holds what ends last

    def ask(self, max_delay: float | None, *, only_leases: bool = False) -> Decision:
        """Decide once."""
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
        deadline = self._deadline()
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

    def _deadline(self) -> float | None:
        return None if self._max_wait is None else _clock() + self._max_wait


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - _clock())


def _next_try(decision: Decision, deadline: float | None) -> float:
    """Seconds until it makes sense to ask again; raises LimitExceeded if it makes none before the deadline."""
    seconds, left = retry_in(decision), _left(deadline)
    if seconds is None or left == 0:
        raise LimitExceeded(decision)
    if left is None:
        return seconds
    if any(_earliest(result) > left for result in decision.refused_by):
        raise LimitExceeded(decision)
    return min(seconds, left)


def _earliest(result: Result) -> float:
    """Seconds until a refused charge can have its turn at the earliest."""
    verdict = result.verdict
    if verdict is None:
        return UNAVAILABLE_RETRY_SECONDS
    if result.limit.holds_leases:
        return 0.0  # a lease may be released at any time
    if result.limit.holds:
        return verdict.reset_after  # once there is room in the queue, what is in it goes first
    return verdict.retry_after or 0.0
