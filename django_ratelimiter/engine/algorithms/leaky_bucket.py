"""Leaky bucket as a queue: requests leave at the quota's rate, and the bucket is the room in the queue.

The queued units are the missing tokens of a token bucket; they drain as fast as tokens come back. An allowed
request is delayed until everything queued before it has drained. That is the time until the queue is empty: `reset`.
Allows a request when queued + cost <= capacity, and that time is at most `terms.extra`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..limits import Limit
from ..registry import gettext_noop as _
from . import Microseconds, Sentence
from .token_bucket import look, refund, reset, spend, store, wait

__all__ = ["describe", "look", "refund", "reset", "spend", "store", "wait"]


def describe(limit: Limit, cost: int) -> Iterator[Sentence]:
    longest = (limit.capacity - cost) * limit.window_us // limit.quota
    if limit.capacity <= cost:
        yield (
            _(
                "Requests pass one by one, %(pace)s. None is delayed: a request that comes too early is "
                "rejected, and can be retried at its time."
            ),
            {},
        )
        return
    text = _(
        "Requests pass at an even pace, %(pace)s: each is delayed until the earlier ones have passed, for "
        "%(longest)s at most. The queue has room for %(size)s. If it is full, a request is rejected, and can be "
        "retried as soon as there is room."
    )
    yield text, {"longest": Microseconds(longest)}
