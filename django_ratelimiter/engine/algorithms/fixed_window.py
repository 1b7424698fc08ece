"""Fixed window: at most `capacity` units between two multiples of the window on the clock.

State: (last, used). Admits when used + cost <= capacity. Twice the quota can pass around an edge.
"""

from __future__ import annotations

from ..limits import Terms
from . import State


def look(state: State | None, now: int, terms: Terms) -> tuple[int, int, int]:
    used = state[1] if state and state[0] // terms.period == now // terms.period else 0
    return max(terms.capacity - used, 0), used, 0


def spend(used: int, cost: int, terms: Terms) -> int:
    return max(used, min(used + cost, terms.capacity))


def wait(used: int, _: int, now: int, cost: int, terms: Terms) -> int:
    return terms.period - now % terms.period


def reset(used: int, _: int, now: int, terms: Terms) -> int:
    return terms.period - now % terms.period if used else 0


def store(used: int, _: int, now: int, terms: Terms) -> State:
    return now, used


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    last, used = state
    if last // terms.period != spent_at // terms.period:
        return None
    return last, max(used - cost, 0)
