"""Concurrency: at most `capacity` units in flight. A lease ends when it is released, or after the window.

Leases are stored like the entries of sliding_window_log. Only `wait` differs: it is not known when a lease will be
released, so it is the time until the oldest lease expires, whatever the cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..limits import Limit, Terms
from ..registry import gettext_noop as _
from . import Sentence, State
from .sliding_window_log import look, refund, reset, spend, store

__all__ = ["describe", "look", "refund", "reset", "spend", "store", "wait"]


def wait(used: int, live: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    return state[live] + terms.period - at  # type: ignore[index]


def describe(limit: Limit, cost: int) -> Iterator[Sentence]:
    text = _(
        "%(who)s can have %(quota)s in progress at the same time. A slot is free again when its response has "
        "ended, or after %(window)s at the latest. A rejected caller can retry as soon as one is free; the "
        "response says when that will be at the latest."
    )
    yield text, {}
