"""Sliding window of slots: the units of the last slots of a window, including the current slot.

State: (last, units, units, …), one number per slot, the slot of `last` first. Slot i of a window begins at the first
microsecond from i x P / slots on. Allows when the sum and this cost are at most `capacity`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..limits import Limit, Terms
from ..registry import gettext_noop as _
from . import Microseconds, Sentence, State, Units, fixed_window


def _index(at: int, terms: Terms) -> int:
    """Return how many slots have begun since the Unix epoch."""
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
    excess, age = total + cost - terms.capacity, len(state or ())
    while excess > 0:
        age -= 1
        excess -= state[age] if age + gone <= terms.rate else 0  # type: ignore[index]
    return _start(_index(at, terms) - gone - (age - 1) + terms.rate, terms) - at


def reset(total: int, gone: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
    if not total:
        return 0
    age = 0
    if not spent and state:
        age = gone + next(age for age, units in enumerate(state[1:]) if units)
    return _start(_index(at, terms) - age + terms.rate, terms) - at


def store(total: int, gone: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
    slots = [*(0,) * gone, *(state[1:] if state else (0,))][: terms.rate]
    units = min(cost, total)
    excess, age = units - added, len(slots)  # a rejection that counts: the oldest make room, they would expire first
    while excess:
        age -= 1
        left = min(excess, slots[age])
        slots[age] -= left
        excess -= left
    slots[0] += units
    return at, *slots


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    age = _index(state[0], terms) - _index(spent_at, terms)
    if not 0 <= age < len(state) - 1:
        return None
    last, *slots = state
    slots[age] = max(slots[age] - cost, 0)
    return last, *slots


def describe(limit: Limit, cost: int) -> Iterator[Sentence]:
    slots = limit.number_of_slots
    if slots == 1:
        yield from fixed_window.describe(limit, cost)
        return
    text = _(
        "The window moves on in %(slots)s steps. No stretch of %(most)s ever allows more; one of %(window)s can allow "
        "%(twice)s in the worst case. A rejected caller can retry when enough of the steps are too old to count."
    )
    most = Microseconds(limit.window_us * (slots - 1) // slots)
    yield text, {"slots": slots, "most": most, "twice": Units(2 * limit.quota)}
