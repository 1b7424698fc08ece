"""The contestants: limiters that decide whether one more request of a caller is allowed.

Callers are numbers. Every limiter gives a caller `QUOTA` requests in a window; one with three rules has two more that
are never reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any, Final, NamedTuple

QUOTA: Final = 100
HOUR: Final = 3_600
CALLERS_EACH: Final = 100_000
#: Requests of a caller in a row, before the next caller: so logs are neither empty nor full.
IN_A_ROW: Final = 25
#: Number of requests that are created and then decided: few enough for memory, enough to leave the CPU caches.
AT_ONCE: Final = 10


@dataclass(frozen=True)
class Contestant:
    """One limiter, ready to decide.

    check: decides with the result of `argument` for a caller; returns whether it was allowed. awaited: `check` is a
    coroutine, for the event loop `loop`. name, first: from the registry; its own 100,000 callers begin there, because
    some contestants share counters. in_a_row: requests of each caller before the next one.
    """

    check: Callable[[Any], Any]
    argument: Callable[[int], Any]
    awaited: bool = False
    name: str = ""
    first: int = 0
    in_a_row: int = IN_A_ROW

    @property
    def refused(self) -> int:
        """The last of its callers, which is to be rejected."""
        return self.first + CALLERS_EACH - 1


class Timing(NamedTuple):
    """Microseconds of one call, the mean of several, and how many of these were allowed."""

    us: float
    admitted: int


#: The event loop for all coroutines, so that connections last from round to round.
loop = asyncio.new_event_loop()


def address(caller: int) -> str:
    """Return the IP address of this caller."""
    return f"10.{caller >> 16 & 255}.{caller >> 8 & 255}.{caller & 255}"


def timed(contestant: Contestant, callers: Sequence[int], clock: Callable[[], float] = perf_counter) -> Timing:
    """Decide one request of each of these callers, timed by this clock. Requests are created in batches, untimed."""
    check, took, admitted = contestant.check, 0.0, 0
    for first in range(0, len(callers), AT_ONCE):
        arguments = [contestant.argument(caller) for caller in callers[first : first + AT_ONCE]]
        if contestant.awaited:
            spent, passed = loop.run_until_complete(_awaited(check, arguments))
            took, admitted = took + spent, admitted + passed
            continue
        began = clock()
        for argument in arguments:
            if check(argument):
                admitted += 1
        took += clock() - began
    return Timing(took / len(callers) * 1e6, admitted)


async def _awaited(check: Callable[[Any], Any], arguments: Sequence[Any]) -> tuple[float, int]:
    admitted = 0
    began = perf_counter()
    for argument in arguments:
        if await check(argument):
            admitted += 1
    return perf_counter() - began, admitted


def exhaust(contestant: Contestant) -> None:
    """Make requests of its last caller until one is rejected. Raises RuntimeError if none ever is."""
    for _ in range(4 * QUOTA):
        if not timed(contestant, [contestant.refused]).admitted:
            return
    raise RuntimeError(f"{4 * QUOTA} requests were admitted, of {QUOTA}.")


def new_callers(contestant: Contestant) -> Iterator[int]:
    """Yield its callers, without the first; none of them makes enough requests to be rejected."""
    return (caller for caller in count(contestant.first + 1) for _ in range(contestant.in_a_row))
