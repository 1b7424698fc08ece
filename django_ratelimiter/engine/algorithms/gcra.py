"""GCRA, the generic cell rate algorithm of ITU-T I.371, also known as the leaky bucket as a meter.

It allows exactly what a token bucket allows, so it uses that code: the theoretical arrival time is the time at
which the bucket would be full. In whole microseconds that time is not exact, and with its fraction it takes as much
space as the two numbers of the token bucket.
"""

from .token_bucket import allow, describe, look, refund, reset, spend, store, wait

__all__ = ["allow", "describe", "look", "refund", "reset", "spend", "store", "wait"]
