"""Token bucket: starts full with `capacity` tokens; `quota` tokens come back per window, continuously.

State: (last, missing, parts): what was missing at `last`, in parts of a token, and the parts per token at that
time. One token is `period` parts, and `rate` parts come back per tick, so nothing is ever rounded. Allows when
missing + cost <= capacity. In any time t, in ticks of the clock, it allows at most capacity + t x quota/window units.
A changed quota applies from the last charge on. If it was lowered, the key still expires when the bucket would have
been full under the old quota, unless a later rejection has promised a later time.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..limits import Limit, Terms
from ..registry import gettext_noop
from . import Sentence, State, Units


def look(state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
    missing = _missing(state, at, terms) if state else 0
    return terms.capacity + -missing // terms.period, missing, 0


def _missing(state: State, at: int, terms: Terms) -> int:
    last, missing, parts = state
    period = terms.period
    if parts != period:  # the quota was changed: convert the usage so far to the new parts
        tokens, rest = divmod(missing, parts)
        missing = tokens * period - -rest * period // parts  # can pass 2^53, so Lua multiplies in steps
    missing = min(missing, terms.capacity * period)
    ticks = at // terms.tick_us - last // terms.tick_us
    return missing - ticks * terms.rate if ticks < -(-missing // terms.rate) else 0


def allow(state: State | None, at: int, cost: int, terms: Terms) -> tuple[State, int, int] | None:
    missing = cost * terms.period + (_missing(state, at, terms) if state else 0)
    left = terms.capacity * terms.period - missing
    if left < 0:
        return None
    return (at, missing, terms.period), left // terms.period, _until(missing, at, terms)


def spend(missing: int, cost: int, terms: Terms) -> int:
    return min(missing + cost * terms.period, terms.capacity * terms.period)


def wait(missing: int, _: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    return _until(missing - (terms.capacity - cost) * terms.period, at, terms)


def reset(missing: int, _: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
    return _until(missing, at, terms) if missing else 0


def _until(parts: int, at: int, terms: Terms) -> int:
    return (at // terms.tick_us - -parts // terms.rate) * terms.tick_us - at


def store(missing: int, _: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
    return at, missing, terms.period


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    last, missing, parts = state
    return last, max(missing - cost * parts, 0), parts


def describe(limit: Limit, cost: int) -> Iterator[Sentence]:
    size, quota = limit.capacity, limit.quota
    if limit.refill == "interval":
        text = gettext_noop(
            "A bucket of %(size)s starts full, and %(quota)s come back all at once with each window of %(window)s by "
            "the clock (UTC). So %(size)s can pass at once, and %(most)s around the start of a window. "
            "A rejected caller can retry at the start of the first window that brings enough."
        )
        yield text, {"quota": Units(quota), "most": Units(size + min(size, quota))}
        return
    text = gettext_noop(
        "A bucket of %(size)s starts full and fills up evenly, %(pace)s. So %(size)s can pass at once, and at most "
        "%(most)s in %(window)s. A rejected caller can retry as soon as there is enough again."
    )
    yield text, {"most": Units(size + quota)}
