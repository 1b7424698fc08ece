"""Sliding window counter: the previous window counts with the share of it that the sliding window still covers.

State: (last, current, previous), the units used in the clock's window of `last` and in the one before. When
`elapsed` ticks of the window P have passed, it allows when previous x (1 - elapsed/P) + current + cost <= capacity. The
estimate is not rounded: both sides are multiplied by P (the weighted counter of Cloudflare's "How we built rate
limiting", 2017). It allows at most the quota in any window of the clock, and less than twice the quota in any other
period of that length.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..limits import Limit, Terms
from ..registry import gettext_noop as _
from . import Sentence, State, Units


def look(state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
    period = terms.period
    tick = at // terms.tick_us
    current = previous = 0
    if state:
        windows = tick // period - state[0] // terms.tick_us // period
        if windows == 0:
            _, current, previous = state
        elif windows == 1:
            previous = state[1]
    left = (terms.capacity - current) * period - previous * (period - tick % period)
    return max(left // period, 0), current, previous


def allow(state: State | None, at: int, cost: int, terms: Terms) -> tuple[State, int, int] | None:
    period, tick_us = terms.period, terms.tick_us
    tick = at // tick_us
    window = tick // period
    current, previous = cost, 0
    if state:
        windows = window - state[0] // tick_us // period
        if windows == 0:
            current, previous = cost + state[1], state[2]
        elif windows == 1:
            previous = state[1]
    left = (terms.capacity - current) * period - previous * (period - tick % period)
    if left < 0:
        return None
    return (at, current, previous), left // period, (window + 2) * period * tick_us - at


def spend(current: int, cost: int, terms: Terms) -> int:
    return max(current, min(current + cost, terms.capacity))


def wait(current: int, previous: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    period = terms.period
    start = at // terms.tick_us // period * period
    room = terms.capacity - current - cost
    if room >= 0:  # allowed in this window, after enough of the previous one has left
        tick = start + period - room * period // previous
    else:  # or in the next window, after enough of this one has left
        tick = start + 2 * period - (terms.capacity - cost) * period // current
    return tick * terms.tick_us - at


def reset(current: int, previous: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
    windows = 2 if current else 1 if previous else 0
    if not windows:
        return 0
    start = at // terms.tick_us // terms.period * terms.period
    return (start + windows * terms.period) * terms.tick_us - at


def store(current: int, previous: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
    return at, current, previous


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    last, current, previous = state
    window = terms.period * terms.tick_us
    if last // window != spent_at // window:
        return None
    return last, max(current - cost, 0), previous


def describe(limit: Limit, cost: int) -> Iterator[Sentence]:
    text = _(
        "What was used in the window before counts by how much of that window is less than %(window)s ago, as if it "
        "had been used evenly. So, in the worst case, %(less)s can pass within %(window)s. "
        "A rejected caller can retry as soon as enough usage is too old to count."
    )
    yield text, {"less": Units(2 * limit.quota - 1)}
