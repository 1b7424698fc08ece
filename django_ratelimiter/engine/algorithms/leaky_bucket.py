"""Leaky bucket as a queue: requests leave at the quota's rate, and the bucket is the room in the queue.

What waits in the queue is what is missing from a token bucket, and drains as fast as that refills. An admitted
request is held for as long as what was queued before it takes to drain, which is the time until the bucket is empty:
`reset`. Admits when queued + cost <= capacity, and that time is at most `terms.extra`.
"""

from .token_bucket import look, refund, reset, spend, store, wait

__all__ = ["look", "refund", "reset", "spend", "store", "wait"]
