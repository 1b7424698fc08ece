"""The algorithms: each has pure Python steps in NAME.py and the same steps in Lua in NAME.lua.

Both perform the same steps on the same integers. Time is in microseconds since the Unix epoch and
never earlier than the time in the stored state. `x` and `y` are the level that `look` returns: numbers with a meaning
of the algorithm's own. Charging changes only `x`. An algorithm may import the steps of another, see redis/scripts.py.
To add an algorithm, add its two files and its entry in `registry.Algorithm`, which states its traits.

In Python a step is a function. In Lua a step is the lines under its name, such as `--@look`. They are inserted into
`engine/redis/check.lua` where it names the step, because calling a Lua function would take longer than the
step itself.
There `spend` only stores: `x` is spent already, up to the capacity, and `before` is what it was. Terms and state are
variables of check.lua (`period`, `rate`, `capacity`, `tick_us`, `extra`; `raw`, which begins with `last`), and the
results are assigned to `remaining`, `x`, `y`, `state`, `wait` and `reset`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Protocol, cast

from ..limits import Algorithm, Limit, Terms

#: The stored state of a key: first the time of the last charge, then the algorithm's own numbers.
State = tuple[int, ...]


class Units(int):
    """A number of units in a sentence, shown with thousands separators."""


class Microseconds(int):
    """A duration in a sentence, shown in words: "90 seconds"."""


#: A sentence and its values. The text is English and marked for translation by `gettext_noop`. Each %(name)s is one of
#: these values, or one that every sentence has: who, quota, size, window, pace.
Sentence = tuple[str, Mapping[str, object]]


class Steps(Protocol):
    """One algorithm: a module with these functions."""

    def look(self, state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
        """Return (remaining, x, y) at this time. A remaining of -1 = the terms are for another time."""

    def spend(self, x: int, cost: int, terms: Terms) -> int:
        """Return `x` after charging `cost`, at most the capacity."""

    def wait(self, x: int, y: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
        """Return the microseconds until `cost` would be allowed. It is above `remaining`, and at most the capacity."""

    def reset(self, x: int, y: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
        """Return the microseconds until the full quota is back; then the state can be deleted. spent: just now."""

    def store(self, x: int, y: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
        """Return the state after charging `cost`, of which `added` units fitted."""

    def refund(self, state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
        """Return the state after refunding `cost`, charged at `spent_at`; `None` if that charge no longer counts."""

    def describe(self, limit: Limit, cost: int) -> Iterator[Sentence]:
        """Sentences for the admin: what the limit allows, and when a rejected caller can retry."""


STEPS: dict[str, Steps] = {algorithm: cast(Steps, import_module(f".{algorithm}", __name__)) for algorithm in Algorithm}

#: Does `look`, `spend`, `store` and `reset` in one call, for a cost above 0: from (state, at, cost, terms) to the new
#: state, the remaining units, and the microseconds until the full quota is back; `None` = the cost is not allowed.
Allow = Callable[[State | None, int, int, Terms], tuple[State, int, int] | None]


def allow_in_steps(steps: Steps) -> Allow:
    """Return an `Allow` that calls one step after the other."""

    def allow(state: State | None, at: int, cost: int, terms: Terms) -> tuple[State, int, int] | None:
        remaining, x, y = steps.look(state, at, terms)
        if cost > remaining:
            return None
        spent = steps.spend(x, cost, terms)
        reset = steps.reset(spent, y, at, terms, state, cost)
        return steps.store(spent, y, at, terms, state, cost, spent - x), remaining - cost, reset

    return allow


#: An algorithm may have its own, faster `allow` with the same results.
ALLOW: dict[str, Allow] = {
    algorithm: getattr(steps, "allow", None) or allow_in_steps(steps) for algorithm, steps in STEPS.items()
}
