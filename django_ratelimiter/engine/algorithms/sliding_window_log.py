"""Sliding window log: every allowed cost with its time, so that the window slides exactly.

State: (last, total, time, cost, time, cost, …), the oldest first; costs of the same microsecond are one entry.
Allows when the costs in (at - P, at] and this one are at most `capacity`. So no period of length P exceeds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from ..limits import Limit, Terms
from ..registry import gettext_noop as _
from . import Sentence, State

#: Where the entries of a state begin.
FIRST = 2


def look(state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
    total, live = 0, FIRST
    if state:
        total = state[1]
        while live < len(state) and state[live] <= at - terms.period:
            total -= state[live + 1]
            live += 2
    return max(terms.capacity - total, 0), total, live


def spend(total: int, cost: int, terms: Terms) -> int:
    return max(total, min(total + cost, terms.capacity))


def wait(total: int, live: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    excess = total + cost - terms.capacity
    for entry in range(live, len(state or ()), 2):
        excess -= state[entry + 1]  # type: ignore[index]
        if excess <= 0:
            break
    return state[entry] + terms.period - at  # type: ignore[index]


def reset(total: int, live: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
    if spent:
        return terms.period
    return state[-2] + terms.period - at if state and total else 0


def store(total: int, live: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
    entries = list(state[live:]) if state else []
    units = min(cost, total)
    excess = units - added  # a rejection that counts: the oldest entries make room, because they would expire first
    while excess:
        gone = min(excess, entries[1])
        entries[1] -= gone
        excess -= gone
        if not entries[1]:
            del entries[:2]
    if entries and entries[-2] == at:
        entries[-1] += units
    else:
        entries += at, units
    return at, total, *entries


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    last, total, *entries = state
    entry = 2 * bisect_left(entries[::2], spent_at)
    if entry >= len(entries) or entries[entry] != spent_at:
        return None
    back = min(cost, entries[entry + 1])
    entries[entry + 1] -= back
    if not entries[entry + 1]:
        del entries[entry : entry + 2]
    return last, total - back, *entries


def describe(limit: Limit, cost: int) -> Iterator[Sentence]:
    text = _(
        "No stretch of %(window)s ever allows more: every request is remembered for that time. "
        "A rejected caller can retry as soon as enough of the usage is %(window)s old."
    )
    yield text, {}
