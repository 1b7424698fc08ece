"""The algorithms: for each a pure Python step, NAME.py, beside its Lua twin, NAME.lua.

Both sides of a twin take the same steps over the same integers. Time is in microseconds since the Unix epoch and
never earlier than the stored state's. `x` and `y` are the level that `look` found: numbers of the algorithm's own, of
which spending changes only `x`. An algorithm that differs from another in little takes the rest from it. Adding one
takes its two files and its entry in `registry.Algorithm`, which states its traits.

In Python a step is a function. In Lua it is the lines under its name, `--@look`, which are put where the frame,
`engine/redis/check.lua`, asks for them: Lua would make a function in each call, and that costs more than to run
it.
There `spend` also stores, terms and state are the frame's variables (`period`, `rate`, `capacity`, `tick_us`, `extra`;
`raw`, which begins with `last`), and answers are left in `remaining`, `x`, `y`, `state`, `wait` and `reset`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Protocol, cast

from ..limits import Algorithm, Limit, Terms

#: What is stored for a key: first the time of the last spending, then the algorithm's own numbers.
State = tuple[int, ...]


class Units(int):
    """A number of units in a sentence, shown with its thousands set apart."""


class Microseconds(int):
    """A length of time in a sentence, shown in words: "90 seconds"."""


#: A sentence and the values that stand in it. The text is English and marked for translation by `gettext_noop`; each
#: %(name)s is one of these values, or one that every sentence has: who, quota, size, window, pace.
Sentence = tuple[str, Mapping[str, object]]


class Steps(Protocol):
    """One algorithm: a module of these functions."""

    def look(self, state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
        """Bring the level up to this time: (remaining, x, y). A remaining of -1 = the terms are for another time."""

    def spend(self, x: int, cost: int, terms: Terms) -> int:
        """The `x` after spending `cost`, filled up at the capacity where it does not fit."""

    def wait(self, x: int, y: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
        """Microseconds until `cost`, more than remains and at most the capacity, would pass."""

    def reset(self, x: int, y: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
        """Microseconds until the full quota is back; from then on the state says nothing. spent: just now."""

    def store(self, x: int, y: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
        """The state to keep, now that `cost` was spent, of which `added` did fit."""

    def refund(self, state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
        """The state with `cost`, spent at `spent_at`, given back; `None` where that spending is past."""

    def describe(self, limit: Limit, cost: int) -> Iterator[Sentence]:
        """Sentences for the admin: what the limit allows, and when a rejected caller can retry."""


STEPS: dict[str, Steps] = {algorithm: cast(Steps, import_module(f".{algorithm}", __name__)) for algorithm in Algorithm}

#: Takes `look`, `spend`, `store` and `reset` in one, for a cost above 0: from (state, at, cost, terms) to the state to
#: keep, what remains, and the microseconds until the full quota is back; `None` = the cost does not pass.
Allow = Callable[[State | None, int, int, Terms], tuple[State, int, int] | None]


def allow_in_steps(steps: Steps) -> Allow:
    """Return an `Allow` that takes one step after the other."""

    def allow(state: State | None, at: int, cost: int, terms: Terms) -> tuple[State, int, int] | None:
        remaining, x, y = steps.look(state, at, terms)
        if cost > remaining:
            return None
        spent = steps.spend(x, cost, terms)
        reset = steps.reset(spent, y, at, terms, state, cost)
        return steps.store(spent, y, at, terms, state, cost, spent - x), remaining - cost, reset

    return allow


#: An algorithm may bring a faster `allow` of its own, with the same answers.
ALLOW: dict[str, Allow] = {
    algorithm: getattr(steps, "allow", None) or allow_in_steps(steps) for algorithm, steps in STEPS.items()
}
