"""Fixed window: at most `capacity` units between the start and the end of a window.

State: (last, used, start). Windows begin at multiples of their length on the clock, or each with a key's first
request, or where a calendar has them; then `terms.extra` is the start of the window that the caller believes to be
the present one. Admits when used + cost <= capacity. Twice the quota can pass around an edge.
"""

from __future__ import annotations

from ..limits import Terms
from ..registry import ON_CALENDAR, ON_FIRST_REQUEST
from . import State


def look(state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
    used = state[1] if state else 0
    if terms.rate == ON_FIRST_REQUEST:
        start = state[2] if state and used and at - state[2] < terms.period else at
        if not state or start != state[2]:
            used = 0
    else:
        start = terms.extra if terms.rate == ON_CALENDAR else at - at % terms.period
        if not start <= at < start + terms.period:
            return -1, 0, start
        if state and state[0] < start:
            used = 0
    return max(terms.capacity - used, 0), used, start


def spend(used: int, cost: int, terms: Terms) -> int:
    return max(used, min(used + cost, terms.capacity))


def wait(used: int, start: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    return start + terms.period - at


def reset(used: int, start: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
    return start + terms.period - at if used else 0


def store(used: int, start: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
    return at, used, start


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    last, used, start = state
    if terms.rate != ON_FIRST_REQUEST:
        start = terms.extra if terms.rate == ON_CALENDAR else spent_at - spent_at % terms.period
    if not start <= min(spent_at, last) <= max(spent_at, last) < start + terms.period:
        return None
    return last, max(used - cost, 0), state[2]
