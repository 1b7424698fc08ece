"""What takes time: requests held until their turn, leases held until their request ends, slots for other work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from django.http import HttpRequest

from ..decision import UNAVAILABLE_RETRY_SECONDS, Decision, Result
from ..engine.shielding import shielded
from ..exceptions import LimitExceeded
from .io import Path, ago, go

#: A lease may be released long before it expires, so who waits for one asks again after so many seconds at most.
LEASE_POLL_SECONDS: Final = 1.0
#: Nobody asks again sooner than this.
SHORTEST_PAUSE_SECONDS: Final = 0.001

_HELD: Final = "_ratelimit_leases"

_sleep = time.sleep
_asleep = asyncio.sleep
_clock = time.monotonic


def hold(decision: Decision) -> None:
    """Sleep until an admitted request has its turn."""
    if decision.delay:
        _sleep(decision.delay)


async def ahold(decision: Decision) -> None:
    """The same without blocking the event loop."""
    if decision.delay:
        await _asleep(decision.delay)


def end_with(request: HttpRequest, release: Callable[[], Path[None]]) -> None:
    """Have the path of `release` gone once when the response to this request has been sent or given up.

    Django closes the request with the final response, also where a middleware has put another in its place.
    """
    held: list[Callable[[], Path[None]]] | None = request.__dict__.get(_HELD)
    if held is None:
        held = request.__dict__[_HELD] = []
        close = request.close

        def close_and_end() -> None:
            try:
                close()
            finally:
                end(request)

        request.close = close_and_end  # type: ignore[method-assign]
    held.append(release)


def end(request: HttpRequest) -> None:
    """Do now what was to be done when the request ends."""
    go(_ending(request))


async def aend(request: HttpRequest) -> None:
    """The same on an event loop, even if our task is cancelled."""
    await shielded(ago(_ending(request)))


def _ending(request: HttpRequest) -> Path[None]:
    held: list[Callable[[], Path[None]]] = request.__dict__.get(_HELD, [])
    while held:
        yield from held.pop()()


def pause(decision: Decision) -> float | None:
    """Seconds after which a refused request should ask again; `None` = it will never pass."""
    if decision.unavailable or decision.retry_after is None:
        return decision.retry_after
    return max(_pause(result) for result in decision.refused_by)


def _pause(result: Result) -> float:
    seconds = (result.verdict and result.verdict.retry_after) or 0.0
    if result.limit.holds_leases:
        seconds = min(seconds, LEASE_POLL_SECONDS)
    return max(seconds, SHORTEST_PAUSE_SECONDS)


class Asks(Protocol):
    """Decides once. max_delay: seconds that may be waited when admitted; `None` = any."""

    def __call__(self, max_delay: float | None, *, only_leases: bool = False) -> Path[Decision]: ...


class Slot:
    """A turn within the limits of a scope, for work that is no request: for use in `with` and `async with`.

    The block begins once its turn has come, and what it holds is released with its end. Raises LimitExceeded instead
    if that cannot be within `max_wait` seconds (`None` = any); a cost that never passes is refused at once. It may be
    entered many times, also from several threads or tasks at once.

    asks: the path to a decision. releases: the path that ends the leases of one, which never raises.
    """

    def __init__(self, asks: Asks, releases: Callable[[Decision], Path[None]], max_wait: float | None) -> None:
        self._asks = asks
        self._releases = releases
        self._max_wait = max_wait
        self._held: list[Decision] = []  # which of them leaves first makes no difference

    def ask(self, max_delay: float | None, *, only_leases: bool = False) -> Decision:
        """Decide once."""
        return go(self._asks(max_delay, only_leases=only_leases))

    def release(self, decision: Decision) -> None:
        """End the leases of a decision."""
        go(self._releases(decision))

    def __enter__(self) -> Decision:
        deadline = self._deadline()
        while not (decision := self.ask(_left(deadline))).allowed:
            _sleep(_next_try(decision, deadline))
        self._held.append(decision)
        try:
            hold(decision)
        except BaseException:
            self.__exit__()
            raise
        return decision

    def __exit__(self, *_error: object) -> None:
        self.release(self._held.pop())

    async def __aenter__(self) -> Decision:
        deadline = self._deadline()
        while not (decision := await ago(self._asks(_left(deadline)))).allowed:
            await _asleep(_next_try(decision, deadline))
        self._held.append(decision)
        try:
            await ahold(decision)
        except BaseException:
            await self.__aexit__()
            raise
        return decision

    async def __aexit__(self, *_error: object) -> None:
        await shielded(ago(self._releases(self._held.pop())))

    def _deadline(self) -> float | None:
        return None if self._max_wait is None else _clock() + self._max_wait


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - _clock())


def _next_try(decision: Decision, deadline: float | None) -> float:
    """Seconds until it makes sense to ask again; raises LimitExceeded if it makes none before the deadline."""
    seconds, left = pause(decision), _left(deadline)
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
