"""Sliding window of slots: the units of the last so many parts of a window, the current part included.

State: (last, units, units, …), slot by slot, the slot of `last` first. Slot i of a window begins at the first
microsecond from i x P / slots on. Admits when the sum and this cost are at most `capacity`.
"""

from __future__ import annotations

from ..limits import Terms
from . import State


def _index(at: int, terms: Terms) -> int:
    """The slots that have begun since the Unix epoch."""
    windows, rest = divmod(at, terms.period)
    return windows * terms.rate + rest * terms.rate // terms.period


def _start(index: int, terms: Terms) -> int:
    windows, rest = divmod(index, terms.rate)
    return windows * terms.period - -rest * terms.period // terms.rate


def look(state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
    gone = total = 0
    if state:
        gone = min(_index(at, terms) - _index(state[0], terms), terms.rate)
        total = sum(state[1 : 1 + terms.rate - gone])
    return max(terms.capacity - total, 0), total, gone


def spend(total: int, cost: int, terms: Terms) -> int:
    return max(total, min(total + cost, terms.capacity))


def wait(total: int, gone: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    excess, current = total + cost - terms.capacity, _index(at, terms)
    slots = state[1 : 1 + terms.rate - gone] if state else ()
    for age in range(len(slots) - 1, -1, -1):
        excess -= slots[age]
        if excess <= 0:
            return _start(current - gone - age + terms.rate, terms) - at
    return _start(current + terms.rate, terms) - at  # only what was spent just now is left then


def reset(total: int, gone: int, at: int, terms: Terms, state: State | None, added: int) -> int:
    if not total:
        return 0
    age = 0
    if not added and state:
        age = gone + next(age for age, units in enumerate(state[1:]) if units)
    return _start(_index(at, terms) - age + terms.rate, terms) - at


def store(total: int, gone: int, at: int, terms: Terms, state: State | None, added: int) -> State:
    slots = ((0,) * gone + (state[1:] if state else (0,)))[: terms.rate]
    return at, slots[0] + added, *slots[1:]


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    age = _index(state[0], terms) - _index(spent_at, terms)
    if not 0 <= age < len(state) - 1:
        return None
    last, *slots = state
    slots[age] = max(slots[age] - cost, 0)
    return last, *slots
