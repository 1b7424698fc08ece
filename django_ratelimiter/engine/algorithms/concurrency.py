"""Concurrency: at most `capacity` units in flight. A lease ends when it is released, or after the window.

The leases are kept as sliding_window_log keeps its entries, of which it differs in one answer: when to come back.
Nobody knows when leases will be released, so that is the end of the earliest, whatever the cost.
"""

from __future__ import annotations

from ..limits import Terms
from . import State
from .sliding_window_log import look, refund, reset, spend, store

__all__ = ["look", "refund", "reset", "spend", "store", "wait"]


def wait(held: int, live: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    return state[live] + terms.period - at  # type: ignore[index]
