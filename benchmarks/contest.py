"""Who is measured: a limiter that decides whether one more request of a caller may pass.

Callers are numbers. Every limiter gives a caller `QUOTA` requests in a window; one with three rules adds two that are
never reached.
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
#: A caller makes so many requests in a row, then the next one comes: logs are neither empty nor full.
IN_A_ROW: Final = 25
#: So many requests are made, and then decided: few enough to be at hand, enough for what made them to be forgotten.
AT_ONCE: Final = 10


@dataclass(frozen=True)
class Contestant:
    """One limiter, ready to decide.

    kind: "floor", "ours" or "peer". check: takes what `argument` made of a caller, and tells whether it was admitted.
    awaited: whether `check` has to be awaited, on the event loop `loop`. first: the first of 100,000 callers that are
    its own, for some count together. in_a_row: how many requests each of them makes before the next one comes.
    """

    name: str
    kind: str
    check: Callable[[Any], Any]
    argument: Callable[[int], Any]
    awaited: bool = False
    first: int = 0
    in_a_row: int = IN_A_ROW

    @property
    def refused(self) -> int:
        """The last of its callers, to be refused."""
        return self.first + CALLERS_EACH - 1


class Timing(NamedTuple):
    """Microseconds of one call, the mean of several, and how many of these were admitted."""

    us: float
    admitted: int


#: What is awaited is awaited here, so that connections last from round to round.
loop = asyncio.new_event_loop()


def address(caller: int) -> str:
    """The IP address of this caller."""
    return f"10.{caller >> 16 & 255}.{caller >> 8 & 255}.{caller & 255}"


def timed(contestant: Contestant, callers: Sequence[int], clock: Callable[[], float] = perf_counter) -> Timing:
    """Decide one request of each of these callers, by this clock. They are made a few at a time, outside of it."""
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
    """Make requests of its last caller until one is refused. RuntimeError if none ever is."""
    for _ in range(4 * QUOTA):
        if not timed(contestant, [contestant.refused]).admitted:
            return
    raise RuntimeError(f"{4 * QUOTA} requests were admitted, of {QUOTA}.")


def new_callers(contestant: Contestant, skip: int = 1) -> Iterator[int]:
    """Its callers but the first so many; none of them makes as many requests as would be refused."""
    return (caller for caller in count(contestant.first + skip) for _ in range(contestant.in_a_row))
